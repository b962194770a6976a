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
package pages

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
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
	r := reader{page: Page{Path: path}, source: source}
	root := goldmark.New(goldmark.WithExtensions(extension.Table)).Parser().Parse(text.NewReader(source))
	err = ast.Walk(root, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		return ast.WalkContinue, r.readNode(n)
	})
	if err == nil {
		err = r.reportUnused()
	}
	return r.page, err
}

type reader struct {
	page   Page
	source []byte
	marks  []mark // marks that wait for their block
	record bool   // the text is within results
}

// readNode reads a node of the page, in the order of the text.
func (r *reader) readNode(n ast.Node) error {
	switch n := n.(type) {
	case *ast.HTMLBlock:
		comment := string(n.Lines().Value(r.source)) + closesComment(n, r.source)
		switch {
		case strings.HasPrefix(comment, "<!-- results of "):
			r.record = true
		case strings.HasPrefix(comment, "<!-- end -->"):
			r.record = false
		}
		marks, err := parseMarks(comment)
		if err != nil {
			return r.errorf(r.lineOf(n.Lines().At(0).Start), "%v", err)
		}
		for i := range marks {
			marks[i].line = r.lineOf(n.Lines().At(0).Start)
		}
		r.marks = append(r.marks, marks...)
	case *ast.FencedCodeBlock:
		return r.readBlock(n.Lines(), string(n.Language(r.source)))
	case *ast.CodeBlock:
		return r.readBlock(n.Lines(), "")
	case *ast.CodeSpan:
		r.readSpan(n)
	case *ast.Link:
		r.readLink(n, string(n.Destination))
	case *ast.Image:
		r.readLink(n, string(n.Destination))
	case *ast.Heading:
		r.page.Anchors = append(r.page.Anchors, headingAnchor(string(n.Lines().Value(r.source))))
		return r.reportUnused()
	case *ast.Paragraph, *ast.List:
		return r.reportUnused()
	}
	return nil
}

// closesComment returns the line that ends a comment of several lines.
func closesComment(n *ast.HTMLBlock, source []byte) string {
	if !n.HasClosure() {
		return ""
	}
	return string(n.ClosureLine.Value(source))
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

func (r *reader) lineOf(offset int) int {
	return 1 + strings.Count(string(r.source[:offset]), "\n")
}

// readSpan records a span of code that is a command.
func (r *reader) readSpan(n *ast.CodeSpan) {
	var words strings.Builder
	line, start := 0, 0
	for c := n.FirstChild(); c != nil; c = c.NextSibling() {
		if t, ok := c.(*ast.Text); ok {
			if line == 0 {
				start = t.Segment.Start
				line = r.lineOf(start)
			}
			words.Write(t.Segment.Value(r.source))
		}
	}
	from, to := bytes.LastIndexByte(r.source[:start], '\n')+1, bytes.IndexByte(r.source[start:], '\n')
	if to >= 0 && bytes.Contains(r.source[from:start+to], []byte("*(planned)*")) {
		return
	}
	code := strings.Join(strings.Fields(words.String()), " ")
	if strings.HasPrefix(code, "dsbuild ") || strings.HasPrefix(code, "make ") {
		r.page.Spans = append(r.page.Spans, Span{line, code})
	}
}

// readLink records a link to a file of the project.
func (r *reader) readLink(n ast.Node, target string) {
	if strings.Contains(target, "://") {
		return
	}
	line := 0
	for p := n.Parent(); p != nil && line == 0; p = p.Parent() {
		if p.Type() == ast.TypeBlock && p.Lines() != nil && p.Lines().Len() > 0 {
			line = r.lineOf(p.Lines().At(0).Start)
		}
	}
	r.page.Links = append(r.page.Links, Span{line, target})
}

var unnamed = regexp.MustCompile(`[^\p{L}\p{N} _-]`)

// headingAnchor returns the name that GitHub gives a heading.
func headingAnchor(heading string) string {
	return strings.ReplaceAll(unnamed.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), ""), " ", "-")
}

// readBlock records a block with the marks before it.
func (r *reader) readBlock(lines *text.Segments, lang string) error {
	if lines.Len() == 0 {
		return nil
	}
	b := Block{Line: r.lineOf(lines.At(0).Start), Text: string(lines.Value(r.source))}
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
