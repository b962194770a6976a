package script

import (
	"maps"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// shell is the state of one shell: its variables, functions and surroundings.
// The interpreter runs statements in it, the expander expands words and the
// launcher follows the programs that it starts.
type shell struct {
	script    *Script
	src       *source
	env       *environment
	functions map[string]*function
	files     map[string]Word // written by here-documents, by path
	budget    *budget
	situation
	shells int // depth of shells and functions
	// locals are the variables that the running function hides from its caller, with the values
	// that they have there; nil outside of functions.
	locals map[string]*variable
}

// situation holds the properties that a command shares with its surroundings.
type situation struct {
	via        []*Command
	depth      int
	loop       bool
	branch     bool
	test       bool
	captured   bool
	background bool
	remote     bool
	uncalled   bool
	guards     []string
}

type function struct {
	body   *syntax.Stmt
	src    *source
	called bool
}

// budget bounds the work, for all shells of a script together.
type budget struct {
	seq, commands, chars, levels int
}

func (b *budget) nextSeq() int {
	b.seq++
	return b.seq
}

func (b *budget) isSpent() bool { return b.commands > maxCommands || b.chars > maxChars }

// enterLevel goes a level deeper. It returns false if a bound is reached.
func (sh *shell) enterLevel() bool {
	if sh.budget.levels >= maxLevels || sh.budget.isSpent() {
		return false
	}
	sh.budget.levels++
	sh.budget.chars++
	return true
}

func (sh *shell) leaveLevel() { sh.budget.levels-- }

// newSubshell returns a subshell. Its assignments do not reach the parent.
func (sh *shell) newSubshell() *shell {
	sub := *sh
	sub.env = sh.copyEnvironment()
	if sh.locals != nil {
		sub.locals = map[string]*variable{}
	}
	return &sub
}

// copyEnvironment copies the variables for a subshell or a branch.
func (sh *shell) copyEnvironment() *environment {
	sh.budget.chars += len(sh.env.vars)
	// Copy the variables. Code replaces variables and never changes them.
	return &environment{vars: maps.Clone(sh.env.vars), exportAll: sh.env.exportAll}
}

// withSituation calls do in a changed situation.
func (sh *shell) withSituation(change func(*situation), do func()) {
	saved := sh.situation
	change(&sh.situation)
	do()
	sh.situation = saved
}

// setVariable sets a variable as NAME=value does.
func (sh *shell) setVariable(a *Assignment, export bool) {
	old := sh.env.vars[a.Name]
	v := &variable{value: a.Value, array: a.Array, record: a}
	v.exported = export || sh.env.exportAll || old != nil && old.exported
	if v.exported {
		a.Exported = a.Seq
	}
	sh.env.vars[a.Name] = v
	sh.script.Assignments = append(sh.script.Assignments, a)
}

// exportVariable follows export NAME without a value.
func (sh *shell) exportVariable(name string) {
	old := sh.env.vars[name]
	if old == nil { // at most a variable of the environment; a later NAME=value is exported, too
		old = &variable{unknown: true}
	}
	v := *old
	v.hidden, v.exported = nil, true
	if v.record != nil && v.record.Exported == 0 {
		v.record.Exported = sh.budget.nextSeq()
	}
	sh.env.vars[name] = &v
}

// exportAllVariables follows export of names that are not known: it may be any variable.
func (sh *shell) exportAllVariables() {
	sh.budget.chars += len(sh.env.vars)
	for _, name := range slices.Sorted(maps.Keys(sh.env.vars)) {
		sh.exportVariable(name)
	}
}

// assignUnknown sets variables to values that only the run knows, as read does.
func (sh *shell) assignUnknown(at int, names ...string) {
	for _, name := range names {
		if !syntax.ValidName(name) {
			continue
		}
		r := &Ref{Name: name, Assigned: true, Depth: sh.depth}
		sh.setVariable(sh.newAssignment(name, Word{Chars: []Char{{Ref: r, At: at, kind: charRef}}, At: at}, at), false)
		v := *sh.env.vars[name]
		v.unknown = true
		sh.env.vars[name] = &v
	}
}

// assignNamed sets the variables that words name: read A, printf -v A.
func (sh *shell) assignNamed(words ...Word) {
	for _, w := range words {
		name, known := w.Literal()
		if !known {
			sh.script.Unread = append(sh.script.Unread, w)
			continue
		}
		name, _, _ = strings.Cut(name, "[")
		sh.assignUnknown(w.At, name)
	}
}

// forgetVariables makes variables unknown.
func (sh *shell) forgetVariables(names ...string) {
	for _, name := range names {
		old := sh.env.vars[name]
		sh.env.vars[name] = &variable{unknown: true, exported: old != nil && old.exported}
	}
}

// assignedNames returns the variables that a part of the script assigns: NAME=value, NAME++ and NAME+=1.
func (sh *shell) assignedNames(part syntax.Node) []string {
	var names []string
	nodes := 0
	arithmetic := func(x syntax.ArithmExpr) {
		w, ok := x.(*syntax.Word)
		switch {
		case !ok:
		case syntax.ValidName(w.Lit()):
			names = append(names, w.Lit())
		case len(w.Parts) == 1: // NAME[index]
			if p, ok := w.Parts[0].(*syntax.ParamExp); ok && p.Param != nil {
				names = append(names, p.Param.Value)
			}
		}
	}
	syntax.Walk(part, func(n syntax.Node) bool {
		nodes++
		switch n := n.(type) {
		case *syntax.Assign:
			if n.Name != nil && !n.Naked {
				names = append(names, n.Name.Value)
			}
		case *syntax.UnaryArithm:
			if n.Op == syntax.Inc || n.Op == syntax.Dec {
				arithmetic(n.X)
			}
		case *syntax.BinaryArithm:
			if n.Op == syntax.Assgn || n.Op >= syntax.AddAssgn && n.Op <= syntax.PowAssgn {
				arithmetic(n.X)
			}
		}
		return true
	})
	sh.budget.chars += nodes
	return names
}

// newAssignment makes an assignment at this point of the script.
func (sh *shell) newAssignment(name string, value Word, at int) *Assignment {
	sh.budget.commands++
	return &Assignment{
		Name: name, Value: value, At: at, Seq: sh.budget.nextSeq(), Depth: sh.depth, Via: sh.via,
		Branch: sh.branch, Inherited: slices.ContainsFunc(value.Refs(), func(r *Ref) bool { return r.Name == name && r.Default != nil }),
	}
}

func (sh *shell) newCommand(words []Word) *Command {
	sh.budget.commands++
	sh.budget.chars += len(sh.env.vars)
	// The exported variables with known values.
	exported := map[string]*Assignment{}
	for name, v := range sh.env.vars {
		if v.exported && !v.unknown && v.record != nil {
			exported[name] = v.record
		}
	}
	return &Command{
		environment: exported,
		Words:       words, Via: sh.via, Depth: sh.depth, Seq: sh.budget.nextSeq(), At: words[0].At,
		Loop: sh.loop, Branch: sh.branch, Test: sh.test, Captured: sh.captured, Background: sh.background,
		Remote: sh.remote, Uncalled: sh.uncalled, Guards: sh.guards,
	}
}
