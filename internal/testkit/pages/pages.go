// Package pages reads the documentation as data: the blocks of a page, the commands in them, and
// how each command is tested. HTML comments, "marks", say how. They stand right before a block,
// and readers do not see them:
//
//	<!-- run: exit 2 -->          executed; the exit code is this instead of 0
//	<!-- dry run: WHY -->         executed with --dry-run appended
//	<!-- parse: WHY -->           checked against the program's flags and arguments
//	<!-- by: TestX TestY -->      executed by these tests
//	<!-- not run: WHY -->         none of the above
//	<!-- file: NAME -->           no commands: a file that the page's commands find
//	<!-- input: COMMAND -->       no commands: the standard input of this command when executed
//	<!-- text: WHAT -->           no commands: output, a setting, an excerpt
//	<!-- output: WHY -->          the output shown below a command is not compared
//
// A number before the colon ("parse 2:") selects one command of the block. A command without a
// mark is executed and must exit with 0. The program whose results stand between "<!-- results
// of" and "<!-- end -->" has written them there.
//
// The pages use a small part of Markdown, and so does this reader: headings that begin with "#",
// blocks between fences or indented by four columns below an empty line, comments that begin a
// line, code and links within a paragraph.
package pages

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// Page is one file of the documentation.
type Page struct {
	Path   string
	Blocks []Block
	// Spans are the commands within the text: code that begins with "dsbuild" or
	// "make", but for those in a line that says "(planned)".
	Spans []Span
	// Links are the links within the project. Anchors are the names in this page to which a link
	// may lead.
	Links   []Span
	Anchors []string
}

// Block is a fenced or indented block.
type Block struct {
	Line     int    // the number of its first line, from 1
	File     string // the name of the file that it is, or ""
	Text     string
	About    string // why it has none of the page's commands
	Commands []Command
}

// Command is a command that a reader would type, with its output on the page.
type Command struct {
	Line   int
	Text   string // for a shell, with continued lines joined
	Output string // the output shown below it
	How    Level
	Why    string   // the reason for a level below Run
	Tests  []string // for level By
	Exit   int      // the exit code, for levels Run and DryRun
	Loose  bool     // the output is not compared
	Input  string   // its standard input
}

// Span is a command within a sentence, or a link.
type Span struct {
	Line int
	Text string
}

// Level is how thoroughly a command is tested.
type Level int

// The levels, the strongest first.
const (
	Run Level = iota
	By
	Recorded
	DryRun
	Parse
	NotRun
)

// String is the name of a level in a summary.
func (l Level) String() string {
	return [...]string{"executed", "executed by another test", "recorded from a run", "executed with --dry-run", "parsed only", "not run"}[l]
}

// Read reads a page. Its errors name the file and the line.
func Read(path string) (Page, error) {
	source, err := os.ReadFile(path)
	if err != nil {
		return Page{}, err
	}
	r := reader{page: Page{Path: path}, lines: strings.Split(strings.TrimSuffix(string(source), "\n"), "\n")}
	for r.at < len(r.lines) && err == nil {
		err = r.readNext()
	}
	if err == nil {
		err = r.reportUnused()
	}
	return r.page, err
}

type reader struct {
	page   Page
	lines  []string
	at     int    // the next line, from 0
	marks  []mark // marks that wait for their block
	record bool   // the text is within results
	inList bool   // indented lines continue an item of a list
}

var (
	fence    = regexp.MustCompile("^ *```+ *([a-z]*)$")
	listItem = regexp.MustCompile(`^ *([-*]|\d+\.) `)
)

// readNext reads the next heading, comment, block or paragraph.
func (r *reader) readNext() error {
	line := r.lines[r.at]
	switch {
	case strings.TrimSpace(line) == "":
		r.at++
		return nil
	case strings.HasPrefix(strings.TrimLeft(line, " "), "<!--"):
		return r.readComment()
	case fence.MatchString(line):
		return r.readFence(fence.FindStringSubmatch(line)[1])
	case strings.HasPrefix(line, "    ") && !r.inList:
		return r.readIndented()
	case strings.HasPrefix(line, "#"):
		r.readSpans(r.at, line)
		r.at++
		r.inList = false
		r.page.Anchors = append(r.page.Anchors, headingAnchor(strings.TrimLeft(line, "# ")))
		return r.reportUnused()
	}
	return r.readParagraph()
}

// readComment reads a comment and its marks.
func (r *reader) readComment() error {
	first := r.at
	for !strings.Contains(r.lines[r.at], "-->") && r.at < len(r.lines)-1 {
		r.at++
	}
	r.at++
	comment := strings.TrimLeft(strings.Join(r.lines[first:r.at], "\n"), " ")
	switch {
	case strings.HasPrefix(comment, "<!-- results of "):
		r.record = true
	case strings.HasPrefix(comment, "<!-- end -->"):
		r.record = false
	}
	marks, err := parseMarks(comment)
	if err != nil {
		return r.errorf(first+1, "%v", err)
	}
	for i := range marks {
		marks[i].line = first + 1
	}
	r.marks = append(r.marks, marks...)
	return nil
}

// readFence reads a block between fences. In a list it is indented as its fence is.
func (r *reader) readFence(lang string) error {
	indent := len(r.lines[r.at]) - len(strings.TrimLeft(r.lines[r.at], " "))
	first := r.at + 1
	var text strings.Builder
	for r.at = first; r.at < len(r.lines) && strings.TrimSpace(r.lines[r.at]) != "```"; r.at++ {
		line := r.lines[r.at]
		text.WriteString(line[min(indent, len(line)-len(strings.TrimLeft(line, " "))):] + "\n")
	}
	if r.at == len(r.lines) {
		return r.errorf(first, "the block has no end")
	}
	r.at++
	return r.readBlock(first+1, text.String(), lang)
}

// readIndented reads a block that is indented by four columns, with the empty lines in it.
func (r *reader) readIndented() error {
	first := r.at
	var text strings.Builder
	for ; r.at < len(r.lines); r.at++ {
		line, indented := strings.CutPrefix(r.lines[r.at], "    ")
		if !indented && strings.TrimSpace(line) != "" {
			break
		}
		text.WriteString(line + "\n")
	}
	return r.readBlock(first+1, strings.TrimRight(text.String(), "\n")+"\n", "")
}

// readParagraph reads the code and the links of a paragraph or of an item of a list.
func (r *reader) readParagraph() error {
	first := r.at
	r.inList = listItem.MatchString(r.lines[first]) || r.inList && strings.HasPrefix(r.lines[first], " ")
	for r.at++; r.at < len(r.lines); r.at++ {
		line := r.lines[r.at]
		if strings.TrimSpace(line) == "" || strings.HasPrefix(strings.TrimLeft(line, " "), "<!--") || fence.MatchString(line) {
			break
		}
		r.inList = r.inList || listItem.MatchString(line)
	}
	r.readSpans(first, strings.Join(r.lines[first:r.at], "\n"))
	return r.reportUnused()
}

var (
	codeSpan = regexp.MustCompile("(`+)[^`]+`+")
	link     = regexp.MustCompile(`\]\(([^()\s]+)\)`)
)

// readSpans records the commands and the links of a text whose first line is the given one.
func (r *reader) readSpans(first int, text string) {
	lineOf := func(offset int) int { return first + strings.Count(text[:offset], "\n") }
	for _, at := range codeSpan.FindAllStringIndex(text, -1) {
		code := strings.Join(strings.Fields(strings.Trim(text[at[0]:at[1]], "`")), " ")
		line := lineOf(at[0])
		command := strings.HasPrefix(code, "dsbuild ") || strings.HasPrefix(code, "make ")
		if command && !strings.Contains(r.lines[line], "*(planned)*") {
			r.page.Spans = append(r.page.Spans, Span{line + 1, code})
		}
	}
	prose := codeSpan.ReplaceAllStringFunc(text, func(code string) string { return strings.Repeat("`", len(code)) })
	for _, at := range link.FindAllStringSubmatchIndex(prose, -1) {
		if target := text[at[2]:at[3]]; !strings.Contains(target, "://") {
			r.page.Links = append(r.page.Links, Span{lineOf(at[0]) + 1, target})
		}
	}
}

// reportUnused returns an error if no block followed a mark.
func (r *reader) reportUnused() error {
	if len(r.marks) == 0 {
		return nil
	}
	return r.errorf(r.marks[0].line, "the mark %q stands before no block", r.marks[0].key)
}

func (r *reader) errorf(line int, format string, args ...any) error {
	return fmt.Errorf("%s:%d: %s", r.page.Path, line, fmt.Sprintf(format, args...))
}

var unnamed = regexp.MustCompile(`[^\p{L}\p{N} _-]`)

// headingAnchor returns the name that GitHub gives a heading.
func headingAnchor(heading string) string {
	return strings.ReplaceAll(unnamed.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), ""), " ", "-")
}

// readBlock records a block with the marks before it.
func (r *reader) readBlock(line int, text, lang string) error {
	if text == "" {
		return nil
	}
	b := Block{Line: line, Text: text}
	marks := r.marks
	r.marks = nil
	if whole := wholeMark(marks); whole != nil {
		if len(marks) > 1 {
			return r.errorf(b.Line, "a block that is a %s has no other marks", whole.key)
		}
		switch whole.key {
		case "file":
			b.File = whole.text
		case "text":
			b.About = whole.text
		case "input":
			b.Commands = []Command{{Line: b.Line, Text: whole.text, Input: b.Text}}
		}
		r.page.Blocks = append(r.page.Blocks, b)
		return nil
	}
	switch lang {
	case "console", "", "sh", "bash":
		b.Commands = readCommands(b, lang == "console")
	default:
		if r.record {
			return nil
		}
		return r.errorf(b.Line, "the purpose of this %s block is unknown: add <!-- file: NAME --> or <!-- text: WHAT -->", lang)
	}
	if len(b.Commands) == 0 {
		return r.errorf(b.Line, "a block without a command: add <!-- text: WHAT -->")
	}
	if r.record {
		for i := range b.Commands {
			b.Commands[i].How = Recorded
		}
	}
	for _, m := range marks {
		if err := m.applyMark(b.Commands); err != nil {
			return r.errorf(m.line, "%v", err)
		}
	}
	r.page.Blocks = append(r.page.Blocks, b)
	return nil
}

// readCommands reads a block of commands. In a block that shows a terminal, commands stand
// behind "$ ", and the other lines are their output. In any other block every line is a command.
func readCommands(b Block, terminal bool) []Command {
	var all []Command
	open := false
	for i, line := range strings.Split(strings.TrimRight(b.Text, "\n"), "\n") {
		command, prompt := strings.CutPrefix(line, "$ ")
		ignored := strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#")
		switch {
		case open:
			all[len(all)-1].Text += "\n" + line
		case prompt || !terminal && !ignored:
			all = append(all, Command{Line: b.Line + i, Text: command})
			open = true
		case terminal && len(all) > 0:
			all[len(all)-1].Output += line + "\n"
		}
		open = open && strings.HasSuffix(line, `\`)
	}
	return all
}
