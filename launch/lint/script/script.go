// Package script parses launch scripts. It lists a script's commands with their expanded
// words, the commands that start each one (srun, bash -c, docker run), and which shell
// expands each word.
//
// It parses the shell, substitutes the script's scalar variables and reads the text of bash -c.
// A [Ref] stands for text that is unknown before the run: variables of the environment, arrays,
// arithmetic and command output. Here-documents, strings for eval or ssh, and other files are not
// read.
// The package runs nothing.
package script

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/lists"
)

// Limits: launch scripts are small, and hostile input must not take long.
const (
	// MaxSize is the maximum size of a script.
	MaxSize     = 1 << 20
	maxCommands = 2000    // commands and assignments
	maxChars    = 1 << 19 // expanded characters, and variables copied for subshells
	maxWord     = 32 << 10
	maxRef      = 1 << 10 // bytes of a condition, or of a Ref's text
	maxGuards   = 100     // conditions around a command
	maxShells   = 12      // shells within shells
	maxLevels   = 200     // statements within statements, and expansions
)

// Script describes a file.
type Script struct {
	// Text is the file.
	Text []byte
	// Batch holds the #SBATCH options in order; for a heterogeneous job, the first component's.
	Batch []Option
	// Heterogeneous reports whether the job has several components. Each step chooses one.
	Heterogeneous bool
	// Directives holds the #SBATCH lines before the first command, and Late the lines after it,
	// which Slurm ignores.
	Directives, Late []Directive
	// Commands holds all commands in order. A command precedes the commands that it starts;
	// function bodies come last.
	Commands []*Command
	// Assignments holds all assignments in order.
	Assignments []*Assignment
	// Unread holds words that may set unknown variables: a sourced file, the text of eval, an
	// export of command output.
	Unread []Word
	// Comments holds the shell comments.
	Comments []Comment
	// Blanks holds the positions of backslashes that quote a blank at the end of a command or
	// before a comment, and so do not continue the line.
	Blanks []int
	// Extra holds words of #SBATCH lines that are neither options nor values.
	Extra []Word
	// Unfilled holds the start and end of placeholders such as <your partition>.
	Unfilled [][]int
	// End is where reading stopped: len(Text), unless a limit was reached.
	End int
	// Shebang is the position of the first line that begins with #!, or -1.
	Shebang int
	// CarriageReturn is the position of the first Windows line end, or -1.
	CarriageReturn int
}

// Comment is the text after a #.
type Comment struct {
	At   int
	Text string
}

// Directive is a #SBATCH line.
type Directive struct {
	At    int
	Words []Word
}

// Assignment sets a variable.
type Assignment struct {
	Name  string
	Value Word
	At    int
	// Seq orders assignments and commands.
	Seq int
	// Exported is the Seq of the export, or zero if the variable is not exported. Later commands
	// inherit it.
	Exported int
	// Depth is the Command.Depth of its shell.
	Depth int
	// Via holds the commands that started that shell.
	Via []*Command
	// Branch reports whether the assignment may not run: it is in a branch, or after ||.
	Branch bool
	// Inherited reports whether the environment may already set it: NAME=${NAME:-x}.
	Inherited bool
}

// Situation describes where a command runs.
type Situation struct {
	// Via holds the commands that start it, outermost first: srun, then bash.
	Via []*Command
	// Depth counts the commands of Via that start one process per task or node.
	// The surrounding shell expands the words: a Ref with a smaller Depth than its
	// command is the same for all tasks.
	Depth int
	// Guards holds the source text of the conditions around the command.
	Guards []string

	Loop       bool // in the body of a loop
	Branch     bool // may not run: in a branch, or after ||
	Test       bool // its exit status decides a loop or a branch
	Background bool
	Piped      bool // its output goes to another command
	Remote     bool // in a container: without the script's environment
	InFunction bool // in the body of a function, whose calls are not followed
}

// Command is a simple command with expanded words.
type Command struct {
	Situation
	Words []Word
	// Env holds the assignments before the command.
	Env []*Assignment
	// environment holds the exported variables of its shell whose values are known.
	environment map[string]*Assignment
	// Redirects holds the files of its redirections.
	Redirects []Word
	// Options holds the options of srun, sbatch and salloc.
	Options []Option
	// Open reports whether a variable may hold more options.
	Open bool
	// Seq orders assignments and commands.
	Seq int
	// At is its position in the file.
	At int
}

// Name returns the program's base name. It returns "" if the name is unknown.
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

// Arg returns the text of a word. It returns "" if the word is missing or unknown.
func (c *Command) Arg(i int) string {
	if i >= len(c.Words) {
		return ""
	}
	text, _ := c.Words[i].Literal()
	return text
}

// Text formats the command for messages.
func (c *Command) Text() string {
	words := lists.Map(c.Words, Word.Text)
	return strings.Join(words, " ")
}

// Getenv returns the assignment of a variable in the command's environment. It returns nil if
// there is none or several may apply.
func (c *Command) Getenv(name string) *Assignment {
	for _, a := range c.Env {
		if a.Name == name {
			return a
		}
	}
	return c.environment[name]
}

// Starter returns the innermost starter of c with one of these names, or nil.
func (c *Command) Starter(names ...string) *Command {
	for i := len(c.Via) - 1; i >= 0; i-- {
		if slices.Contains(names, c.Via[i].Name()) {
			return c.Via[i]
		}
	}
	return nil
}

// Read reads a script. The error is a *SyntaxError.
func Read(text []byte) (*Script, error) {
	switch {
	case len(text) > MaxSize:
		return nil, &SyntaxError{At: -1, Err: fmt.Errorf("larger than %d MiB: not a launch script", MaxSize>>20)}
	case bytes.IndexByte(text, 0) >= 0:
		return nil, &SyntaxError{At: -1, Err: errors.New("a binary file: not a launch script")}
	case nestingDepth(text) > maxNesting:
		return nil, &SyntaxError{At: 0, Err: fmt.Errorf("nested more than %d levels deep", maxNesting)}
	}
	first, _, _ := bytes.Cut(text, []byte("\n"))
	if shebang, ok := bytes.CutPrefix(first, []byte("#!")); ok && !isShellLine(string(shebang)) {
		program := strings.TrimSpace(string(shebang))
		return nil, &SyntaxError{At: 0, Err: fmt.Errorf("not an sh or bash script: its first line specifies %s", program)}
	}
	src, file, unfilled, err := readFile(text)
	if err != nil {
		return nil, newSyntaxError(src, err)
	}
	return readScript(text, src, file, unfilled), nil
}

// isShellLine reports whether a #! line names a supported shell.
func isShellLine(line string) bool {
	for _, word := range strings.Fields(line) {
		switch base := path.Base(word); {
		case base == "sh", base == "bash", base == "dash", base == "ash", strings.HasSuffix(base, "ksh"):
			return true
		case base == "env", strings.HasPrefix(word, "-"), strings.Contains(word, "="):
		default:
			return false
		}
	}
	return false
}

// maxNesting is the maximum depth of brackets. The parser is recursive, and Go cannot
// recover from a stack overflow.
const maxNesting = 1000

// nestingDepth returns the depth of brackets, including those in quotes and comments.
// MaxSize bounds other nesting, such as reserved words.
func nestingDepth(text []byte) int {
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
