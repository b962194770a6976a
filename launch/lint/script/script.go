// Package script reads shell scripts that launch jobs, and says what they do:
// which commands run, with which words after the shell's expansions, started
// by what (srun, bash -c, ssh), and which of their words are expanded by which
// shell.
//
// The shell is parsed for real; variables that the script itself sets are
// followed, and what only the run knows stays a [Ref]. Nothing is run.
package script

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// Bounds of what is read: a launch script is small, and hostile input must not
// take long.
const (
	// MaxSize is the size of the largest file that is read.
	MaxSize     = 128 << 10
	maxCommands = 5000
	maxChars    = 1 << 20 // of all expansions together
	maxWord     = 32 << 10
	maxShells   = 12  // shells within shells, and functions
	maxLevels   = 200 // statements within statements, and expansions
)

// Script is what a file, or a script in one of its here-documents, does.
type Script struct {
	// Batch are the #SBATCH options that Slurm reads, in order.
	Batch []Option
	// Directives are the #SBATCH lines before the first command; Late those
	// after it, which Slurm does not read.
	Directives, Late []Directive
	// Commands are all that the script runs, in order; what another command
	// starts comes after it. Functions that nobody calls come last.
	Commands []*Command
	// Assignments are all the variables that it sets, in order.
	Assignments []*Assignment
	// Submitted says that it is given to sbatch by the script around it.
	Submitted bool
	// Inner are the scripts that it writes to files or submits.
	Inner []*Script
	// Comments are those of the shell, with where they begin.
	Comments []Comment
	// Ranges are the simple commands' first and last byte.
	Ranges []Range
}

// Comment is the text behind a #.
type Comment struct {
	At   int
	Text string
}

// Range is a part of the file.
type Range struct{ At, End int }

// Directive is a #SBATCH line.
type Directive struct {
	At    int
	Words []Word
}

// Assignment is a variable that is set.
type Assignment struct {
	Name  string
	Value Word
	Array []Word // of NAME=(...)
	At    int
	// Seq orders assignments and commands.
	Seq int
	// Exported is the Seq from which on the commands of the script get the
	// variable in their environment, 0 for never.
	Exported int
	// Depth is Command.Depth of the shell that sets it.
	Depth int
	// Via are the commands that started that shell.
	Via []*Command
	// Branch says that it may not happen: in a branch, or behind ||.
	Branch bool
	// Inherited says that it may be in the environment anyway: NAME=${NAME:-x}.
	Inherited bool
}

// Redirect is where a command's input or output goes.
type Redirect struct {
	Op   string
	Word Word
}

// Command is a simple command with its words expanded.
type Command struct {
	Words []Word
	// Env are the assignments for it alone.
	Env []*Assignment
	// environment are the variables of known value that its shell exports.
	environment map[string]*Assignment
	// Via are the commands that start it, outermost first: srun, then bash.
	Via       []*Command
	Redirects []Redirect
	// Options are those of srun, sbatch and salloc.
	Options []Option
	// Target is the host of ssh.
	Target Word
	// Open says that there may be options of those that are not known.
	Open bool
	// Depth is how many of Via start something once for each task or node.
	// Words are expanded by the shell that they stand in: a Ref of less Depth
	// than its command is the same for all tasks.
	Depth int
	// Seq orders assignments and commands.
	Seq int
	// At is where it stands in the file.
	At int

	Loop       bool // in the body of a loop
	Branch     bool // may not happen: in a branch, or behind ||
	Test       bool // its exit status decides a loop or a branch
	Captured   bool // in $(...)
	Background bool
	Remote     bool // by ssh or in a container: without our environment
	Pipefail   bool
	Piped      bool // its output goes to another command
	Uncalled   bool // in a function that the script does not call
}

// Name is the program without its folder, "" if it is not known.
func (c *Command) Name() string {
	if len(c.Words) == 0 {
		return ""
	}
	name, ok := c.Words[0].Literal()
	if !ok {
		// $VENV/bin/torchrun
		_, last, found := c.Words[0].CutLast('/')
		if name, ok = last.Literal(); !found || !ok {
			return ""
		}
	}
	if name == "" {
		return ""
	}
	return path.Base(name)
}

// Arg is the text of a word, "" where there is none or it is not known.
func (c *Command) Arg(i int) string {
	if i >= len(c.Words) {
		return ""
	}
	text, _ := c.Words[i].Literal()
	return text
}

// Text is the command as a reader would write it.
func (c *Command) Text() string {
	words := make([]string, len(c.Words))
	for i, w := range c.Words {
		words[i] = w.Text()
	}
	return strings.Join(words, " ")
}

// Getenv is the assignment that gives the command a variable of its
// environment, or nil where the script sets none or more than one may count.
func (c *Command) Getenv(name string) *Assignment {
	for _, a := range c.Env {
		if a.Name == name {
			return a
		}
	}
	return c.environment[name]
}

// Starter is the innermost of the commands that start c whose name is one of
// these, or nil.
func (c *Command) Starter(names ...string) *Command {
	return innermost(c.Via, names)
}

// Starter is as for commands.
func (a *Assignment) Starter(names ...string) *Command {
	return innermost(a.Via, names)
}

func innermost(via []*Command, names []string) *Command {
	for i := len(via) - 1; i >= 0; i-- {
		for _, name := range names {
			if via[i].Name() == name {
				return via[i]
			}
		}
	}
	return nil
}

// SyntaxError says why a text is no shell script.
type SyntaxError struct {
	At  int // the byte
	Err error
}

func (e *SyntaxError) Error() string { return e.Err.Error() }

// Unwrap is the parser's error.
func (e *SyntaxError) Unwrap() error { return e.Err }

// Read reads a script. The error is a *SyntaxError.
func Read(text []byte) (*Script, error) {
	if err := acceptable(text); err != nil {
		return nil, &SyntaxError{0, err}
	}
	src := &source{text: text}
	file, err := src.parse()
	if err != nil {
		return nil, positioned(err)
	}
	b := &budget{}
	return run(src, file, b), nil
}

// acceptable refuses what is clearly something else.
func acceptable(text []byte) error {
	if len(text) > MaxSize {
		return fmt.Errorf("too large for a launch script: %d bytes, at most %d are read", len(text), MaxSize)
	}
	if bytes.IndexByte(text, 0) >= 0 {
		return errors.New("not a shell script: it has zero bytes")
	}
	if nesting(text) > maxNesting {
		return fmt.Errorf("nested more than %d levels deep", maxNesting)
	}
	first, _, _ := bytes.Cut(text, []byte("\n"))
	if shebang, ok := bytes.CutPrefix(first, []byte("#!")); ok && !shellLine(string(shebang)) {
		return fmt.Errorf("not a script of sh or bash: its first line names %s", strings.TrimSpace(string(shebang)))
	}
	return nil
}

// shellLine reports whether the interpreter of a #! line is a shell that is
// understood.
func shellLine(line string) bool {
	for _, word := range strings.Fields(line) {
		switch base := path.Base(word); {
		case base == "sh", base == "bash", base == "dash", base == "ash", strings.HasSuffix(base, "ksh"), base == "zsh", base == "bats":
			return true
		case base == "env", strings.HasPrefix(word, "-"), strings.Contains(word, "="):
		default:
			return false
		}
	}
	return false
}

// maxNesting is how deep brackets may go: the parser is recursive, and nothing
// recovers a program whose stack is full.
const maxNesting = 1000

// nesting is how deep the brackets go, quotes and comments not counted out.
// What that misses (quoted brackets, reserved words) is bounded by MaxSize.
func nesting(text []byte) int {
	deepest, depth := 0, 0
	for _, b := range text {
		switch b {
		case '(', '{', '[':
			depth++
			deepest = max(deepest, depth)
		case ')', '}', ']':
			depth = max(depth-1, 0)
		}
	}
	return deepest
}

// positioned takes the place out of a parser's error.
func positioned(err error) error {
	var parse syntax.ParseError
	var lang syntax.LangError
	switch {
	case errors.As(err, &parse):
		return &SyntaxError{int(parse.Pos.Offset()), errors.New(parse.Text)}
	case errors.As(err, &lang):
		lang.Filename = ""
		_, text, _ := strings.Cut(lang.Error(), ": ")
		return &SyntaxError{int(lang.Pos.Offset()), errors.New(text)}
	}
	return &SyntaxError{0, err}
}
