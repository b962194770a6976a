// Package why finds the first cause of a failed job in the logs of its ranks.
//
// signs.json is the table of known signs of failures. A Scanner reads one log, in one pass and with little memory; Read
// scans all logs of a job and decides which of their signs came first. Signs of ranks that only report the end of another
// rank are never the cause if another sign exists.
package why

import (
	_ "embed"
	"encoding/json"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"sync"
)

// Class orders signs: a sign of an earlier class explains the signs of later classes.
type Class string

// The classes.
const (
	Cause  Class = "cause"  // ends a process by itself
	End    Class = "end"    // a process ended by a signal, without a message
	Peer   Class = "peer"   // the network, or another rank that is gone
	Follow Class = "follow" // reports the failure of another process
)

func (c Class) order() int { return slices.Index([]Class{Cause, End, Peer, Follow}, c) }

// Sign is a known sign of a failure.
type Sign struct {
	ID    string `json:"id"`
	Title string `json:"title"`
	Class Class  `json:"class"`
	// Match are expressions for lines of a log. The first matching sign of the table wins.
	Match []string `json:"match"`
	Why   string   `json:"why"`
	Hint  string   `json:"hint"`
	// Prevent is the dsbuild command that finds or removes the cause before a job.
	Prevent string `json:"prevent"`
	// Handled is true if programs often catch the exception and continue. If another exception follows, that exception
	// is the cause.
	Handled bool `json:"handled"`
	// Vague is true if another sign in the same chain of exceptions says more.
	Vague bool `json:"vague"`
	// Warns is true if a warning with the sign explains the errors that follow. Warnings with other causes never do.
	Warns bool `json:"warns"`
	// Lines are real lines with the sign, from a thread at Source.
	Lines  []string `json:"lines"`
	Source string   `json:"source"`
}

// matcher is an expression of a sign. Every match contains literal, which is faster to search for.
type matcher struct {
	literal string
	expr    *regexp.Regexp
	sign    *Sign
}

// exceptionID is the sign of an exception that no other sign explains.
const exceptionID = "exception"

//go:embed signs.json
var signsFile []byte

type signTable struct {
	signs     []*Sign
	matchers  []matcher
	exception *Sign
	starts    [256][256][]int // the matchers by the first two bytes of their literal
}

var readTable = sync.OnceValue(func() *signTable {
	t := &signTable{}
	if err := json.Unmarshal(signsFile, &t.signs); err != nil {
		panic(err) // the file is part of the program
	}
	for _, s := range t.signs {
		for _, match := range s.Match {
			expr := regexp.MustCompile(match)
			parsed, err := syntax.Parse(match, syntax.Perl)
			if err != nil {
				panic(err)
			}
			m := matcher{required(parsed), expr, s}
			start := &t.starts[m.literal[0]][m.literal[1]]
			*start = append(*start, len(t.matchers))
			t.matchers = append(t.matchers, m)
		}
		if s.ID == exceptionID {
			t.exception = s
		}
	}
	return t
})

// required returns the longest text that is part of every match of an expression.
func required(re *syntax.Regexp) string {
	switch re.Op {
	case syntax.OpLiteral:
		if re.Flags&syntax.FoldCase == 0 {
			return string(re.Rune)
		}
	case syntax.OpCapture, syntax.OpPlus:
		return required(re.Sub[0])
	case syntax.OpConcat:
		longest := ""
		for _, sub := range re.Sub {
			if text := required(sub); len(text) > len(longest) {
				longest = text
			}
		}
		return longest
	}
	return ""
}

// Signs returns the table.
func Signs() []*Sign { return readTable().signs }

// Find returns the first sign of a line, or nil.
func Find(line string) *Sign { return readTable().find(line) }

// BySignal returns the sign of a process that a signal ended, or nil.
func BySignal(signal int) *Sign {
	id := map[int]string{4: "illegal-instruction", 7: "shared-memory", 9: "killed", 11: "segfault"}[signal]
	at := slices.IndexFunc(Signs(), func(s *Sign) bool { return s.ID == id })
	if at < 0 {
		return nil
	}
	return Signs()[at]
}

// Advice returns the hint, and the dsbuild command that finds the cause. It returns "" for no sign, and for a sign
// without advice: an exception of the program, or a report of another failure.
func (s *Sign) Advice() string {
	if s == nil || s.ID == exceptionID || s.Class == Follow {
		return ""
	}
	if s.Prevent == "" || strings.HasPrefix(s.Prevent, "dsbuild launch ") && !strings.HasPrefix(s.Prevent, "dsbuild launch lint") { // is what failed
		return s.Hint
	}
	return s.Hint + "; run '" + s.Prevent + "'"
}

// find returns the first sign of a line, or nil.
func (t *signTable) find(line string) *Sign {
	var found []int
	for i := range len(line) - 1 {
		for _, m := range t.starts[line[i]][line[i+1]] {
			if strings.HasPrefix(line[i:], t.matchers[m].literal) {
				found = append(found, m)
			}
		}
	}
	slices.Sort(found)
	for _, m := range slices.Compact(found) {
		if t.matchers[m].expr.MatchString(line) {
			return t.matchers[m].sign
		}
	}
	return nil
}
