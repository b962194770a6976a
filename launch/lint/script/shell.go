package script

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// shell is the state of one shell: its variables, functions and situation.
type shell struct {
	script    *Script
	src       *source
	env       *environment
	functions *[]*function
	budget    *budget
	Situation
	shells int // shells within shells
}

// function is a function's body. Calls are not expanded: a call makes the variables that the body
// names unknown, and the body is read once, without known variables.
type function struct {
	name  string
	body  *syntax.Stmt
	src   *source
	names []string
}

// variable is what is known about a variable at a point of the script.
type variable struct {
	value    Word
	unknown  bool // it may have any value, or none
	unset    bool // certainly not set: unset NAME
	lost     bool // set by an outer shell, which does not export it
	exported bool
	record   *Assignment
}

// environment holds the variables of a shell.
type environment struct {
	vars      map[string]*variable // values are replaced, never changed
	exportAll bool                 // set -a
}

// budget limits the total work for a script.
type budget struct {
	seq, commands, chars, levels int
}

func (b *budget) nextSeq() int {
	b.seq++
	return b.seq
}

func (b *budget) isSpent() bool { return b.commands > maxCommands || b.chars > maxChars }

// enterLevel goes one level deeper. It returns false if a bound is reached.
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
	return &sub
}

// copyEnvironment copies the variables for a subshell or a branch.
func (sh *shell) copyEnvironment() *environment {
	sh.budget.chars += len(sh.env.vars)
	return &environment{vars: maps.Clone(sh.env.vars), exportAll: sh.env.exportAll}
}

// withSituation calls do in a changed situation.
func (sh *shell) withSituation(change func(*Situation), do func()) {
	saved := sh.Situation
	change(&sh.Situation)
	do()
	sh.Situation = saved
}

// setVariable sets a variable as NAME=value does.
func (sh *shell) setVariable(a *Assignment, export bool) {
	old := sh.env.vars[a.Name]
	v := &variable{value: a.Value, record: a, exported: export || sh.env.exportAll || old != nil && old.exported}
	if v.exported {
		a.Exported = a.Seq
	}
	sh.env.vars[a.Name] = v
	sh.script.Assignments = append(sh.script.Assignments, a)
}

// exportVariable handles export NAME without a value.
func (sh *shell) exportVariable(name string) {
	v := variable{unknown: true} // at most a variable of the environment; a later NAME=value is exported
	if old := sh.env.vars[name]; old != nil {
		v = *old
	}
	v.exported = true
	if v.record != nil && v.record.Exported == 0 {
		v.record.Exported = sh.budget.nextSeq()
	}
	sh.env.vars[name] = &v
}

// assignUnknown sets variables to unknown values, as read does.
func (sh *shell) assignUnknown(at int, names ...string) {
	for _, name := range names {
		name, _, _ = strings.Cut(name, "[")
		if !syntax.ValidName(name) {
			continue
		}
		value := Word{Chars: []Char{{Ref: &Ref{Name: name, Assigned: true, Depth: sh.Depth}, At: at}}, At: at}
		sh.setVariable(sh.newAssignment(name, value, at), false)
		sh.forget(name)
	}
}

// assignNamed sets the variables that words name: read A, printf -v A.
func (sh *shell) assignNamed(words ...Word) {
	for _, w := range words {
		if name, known := w.Literal(); known {
			sh.assignUnknown(w.At, name)
		} else {
			sh.assignAny(w)
		}
	}
}

// assignAny handles a word that may name or set any variable: export $NAME.
func (sh *shell) assignAny(w Word) {
	sh.script.Unread = append(sh.script.Unread, w)
	sh.forget(slices.Collect(maps.Keys(sh.env.vars))...)
}

// forget makes variables unknown.
func (sh *shell) forget(names ...string) {
	sh.budget.chars += len(names)
	for _, name := range names {
		if old := sh.env.vars[name]; old != nil {
			sh.env.vars[name] = &variable{unknown: true, exported: old.exported, record: old.record}
		}
	}
}

// mergeBranches sets the variables after several branches, of which one ran. A variable that
// differs between branches becomes unknown.
func (sh *shell) mergeBranches(branches ...*environment) {
	names := map[string]bool{}
	for _, b := range branches {
		for name := range b.vars {
			names[name] = true
		}
	}
	for name := range names {
		first, same := branches[0].vars[name], true
		merged := &variable{unknown: true, exported: true}
		for _, b := range branches {
			v := b.vars[name]
			same = same && v == first
			merged.exported = merged.exported && v != nil && v.exported
			if v != nil && v.record != nil {
				merged.record = v.record
			}
		}
		if same {
			merged = first
		}
		sh.env.vars[name] = merged
	}
}

var (
	// arithmeticAssignment matches NAME=1, NAME+=1, NAME[0]=1, NAME++ and --NAME in arithmetic.
	arithmeticAssignment = regexp.MustCompile(`(?:\+\+|--)\s*([A-Za-z_]\w*)|` +
		`([A-Za-z_]\w*)(?:\[[^\]]*\])?\s*(?:\+\+|--|(?:<<|>>|[-+*/%&|^])?=[^=])`)
	// bareName matches a name, with the $ of a read or the = of an assignment.
	bareName = regexp.MustCompile(`(\$\{?)?[A-Za-z_]\w*(:?=)?`)
)

// assignedNames returns the variables that a part of the script assigns.
func (sh *shell) assignedNames(part syntax.Node) []string {
	var names []string
	syntax.Walk(part, func(n syntax.Node) bool {
		sh.budget.chars++
		switch n := n.(type) {
		case *syntax.Assign:
			if n.Name != nil && !n.Naked {
				names = append(names, n.Name.Value)
			}
		case *syntax.ParamExp:
			if n.Param != nil && n.Exp != nil && (n.Exp.Op == syntax.AssignUnset || n.Exp.Op == syntax.AssignUnsetOrNull) {
				names = append(names, n.Param.Value)
			}
		case *syntax.ArithmExp, *syntax.ArithmCmd, *syntax.LetClause, *syntax.CStyleLoop:
			for _, m := range arithmeticAssignment.FindAllSubmatch(sh.src.between(n.Pos(), n.End()), -1) {
				names = append(names, string(m[1])+string(m[2]))
			}
		}
		return true
	})
	return names
}

// bareNames returns the names in a text, without duplicates. Any of them may be a variable that
// the text sets.
func bareNames(text []byte) []string {
	names := map[string]bool{}
	for _, m := range bareName.FindAll(text, -1) {
		if m[0] != '$' || m[len(m)-1] == '=' {
			names[strings.Trim(string(m), "${:=")] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// newAssignment makes an assignment at this point of the script.
func (sh *shell) newAssignment(name string, value Word, at int) *Assignment {
	sh.budget.commands++
	return &Assignment{
		Name: name, Value: value, At: at, Seq: sh.budget.nextSeq(), Depth: sh.Depth, Via: sh.Via, Branch: sh.Branch,
		Inherited: slices.ContainsFunc(value.Refs(), func(r *Ref) bool { return r.Name == name && r.Default != nil }),
	}
}

func (sh *shell) newCommand(words []Word) *Command {
	sh.budget.commands++
	sh.budget.chars += len(sh.env.vars)
	exported := map[string]*Assignment{}
	for name, v := range sh.env.vars {
		if v.exported && !v.unknown && v.record != nil {
			exported[name] = v.record
		}
	}
	return &Command{
		environment: exported, Situation: sh.Situation,
		Words: words, Seq: sh.budget.nextSeq(), At: words[0].At,
	}
}
