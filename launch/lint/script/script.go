// Package script reads shell scripts that launch jobs. It lists their commands with
// the words after the shell's expansions, the commands that start them (srun, bash -c,
// docker run), and the shell that expands each word.
//
// It parses the shell, substitutes the script's scalar variables and reads the text of bash -c.
// A [Ref] stands for everything else: values that only the run knows, arrays, arithmetic and the
// output of commands. Here-documents, strings for eval or ssh, and other files are not read.
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

// Bounds of the work: launch scripts are small, and hostile input must not take long.
const (
	// MaxSize is the maximum size of a script.
	MaxSize     = 1 << 20
	maxCommands = 2000    // with assignments
	maxChars    = 1 << 19 // of all expansions, with the variables that subshells copy
	maxWord     = 32 << 10
	maxRef      = 1 << 10 // of a condition, or the text of a Ref
	maxGuards   = 100     // conditions around a command
	maxShells   = 12      // shells within shells
	maxLevels   = 200     // statements within statements, and expansions
)

// Script describes a file.
type Script struct {
	// Text is the file.
	Text []byte
	// Batch are the #SBATCH options in order, in a heterogeneous job those of the first component.
	Batch []Option
	// Heterogeneous: the job has several components, of which each step chooses one.
	Heterogeneous bool
	// Directives are the #SBATCH lines before the first command. Slurm ignores those after it, Late.
	Directives, Late []Directive
	// Commands are all commands of the script in order. A command comes before the commands that
	// it starts. The bodies of functions come last.
	Commands []*Command
	// Assignments are all assignments of the script, in order.
	Assignments []*Assignment
	// Unread are the words that may set unknown variables: the file of source, the text of eval, the
	// NAME=value that export gets from a command.
	Unread []Word
	// Comments are the shell's comments.
	Comments []Comment
	// Blanks are the backslashes that quote a blank at the end of a command or before a
	// comment, and so do not continue the line.
	Blanks []int
	// Extra are the words of #SBATCH lines that are neither options nor values.
	Extra []Word
	// Unfilled are the words still to fill in, <your partition>, with their ends.
	Unfilled [][]int
	// End is the position up to which the script is read, the bounds of the work permitting.
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
	// Exported is the Seq of the export, or zero: later commands have the variable in their
	// environment.
	Exported int
	// Depth is the Command.Depth of its shell.
	Depth int
	// Via are the commands that started that shell.
	Via []*Command
	// Branch: the assignment may not run, because it is in a branch or after ||.
	Branch bool
	// Inherited: the variable may already be in the environment: NAME=${NAME:-x}.
	Inherited bool
}

// Situation is what a command shares with its surroundings.
type Situation struct {
	// Via are the commands that start it, outermost first: srun, then bash.
	Via []*Command
	// Depth counts the commands of Via that start one process per task or node.
	// The surrounding shell expands the words: a Ref with a smaller Depth than its
	// command is the same for all tasks.
	Depth int
	// Guards are the conditions around the command, as they are written.
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
	// Env are the assignments in front of the command.
	Env []*Assignment
	// environment are its shell's exported variables with known values.
	environment map[string]*Assignment
	// Redirects are the files that its input and output are redirected to.
	Redirects []Word
	// Options are the options of srun, sbatch and salloc.
	Options []Option
	// Open: a variable may hold further options.
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

// Text writes the command for a reader.
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
