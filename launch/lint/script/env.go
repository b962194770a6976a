package script

import (
	"maps"
	"slices"
)

// variable is what is known about one at some place of the script.
type variable struct {
	value    Word
	array    []Word // nil unless it is an array
	unknown  bool   // set, but not known to what
	unset    bool   // known to be not set: unset NAME
	exported bool
	record   *Assignment
	hidden   *Assignment // set without export by the shell that started this one
}

// environment are the variables of a shell.
type environment struct {
	vars      map[string]*variable
	exportAll bool // set -a
	pipefail  bool
}

func newEnvironment() *environment { return &environment{vars: map[string]*variable{}} }

// fork is a copy for a subshell or a branch. Variables are never changed, only
// replaced.
func (e *environment) fork() *environment {
	return &environment{vars: maps.Clone(e.vars), exportAll: e.exportAll, pipefail: e.pipefail}
}

// child is what a command that is started finds in its environment.
func (e *environment) child() *environment {
	c := newEnvironment()
	for name, v := range e.vars {
		switch {
		case v.exported && v.array == nil, v.unset:
			c.vars[name] = v
		case !v.exported && v.record != nil && !v.record.Inherited:
			c.vars[name] = &variable{unknown: true, hidden: v.record}
		}
	}
	return c
}

// exports are the exported variables of known value.
func (e *environment) exports() map[string]*Assignment {
	all := map[string]*Assignment{}
	for name, v := range e.vars {
		if v != nil && v.exported && !v.unknown && v.record != nil {
			all[name] = v.record
		}
	}
	return all
}

// merge makes e what it is after one of several branches was taken.
func (e *environment) merge(branches []*environment) {
	names := map[string]bool{}
	for _, b := range branches {
		e.pipefail = e.pipefail || b.pipefail
		for name := range b.vars {
			names[name] = true
		}
	}
	for name := range names {
		first, same, exported := branches[0].vars[name], true, true
		var record *Assignment
		for _, b := range branches {
			v := b.vars[name]
			same = same && v == first
			exported = exported && v != nil && v.exported
			if v != nil && v.record != nil {
				record = v.record
			}
		}
		switch {
		case same && first != nil:
			e.vars[name] = first
		case exported:
			e.vars[name] = &variable{unknown: true, exported: true, record: record}
		default:
			e.vars[name] = &variable{unknown: true, record: forgiven(record)}
		}
	}
}

// forgiven is an assignment of which it is not known whether it is exported:
// no finding is made of it.
func forgiven(a *Assignment) *Assignment {
	if a == nil {
		return nil
	}
	c := *a
	c.Inherited = true
	return &c
}

// assign sets a variable as NAME=value does.
func (in *interpreter) assign(a *Assignment, export bool) {
	old := in.env.vars[a.Name]
	v := &variable{value: a.Value, array: a.Array, record: a}
	v.exported = export || in.env.exportAll || old != nil && old.exported
	if v.exported {
		a.Exported = a.Seq
	}
	in.env.vars[a.Name] = v
	in.script.Assignments = append(in.script.Assignments, a)
}

// export is export NAME without a value.
func (in *interpreter) export(name string) {
	v := variable{unknown: true}
	if old := in.env.vars[name]; old != nil {
		v = *old
		if v.hidden != nil {
			v.hidden = nil
		}
		if v.record != nil && v.record.Exported == 0 {
			v.record.Exported = in.budget.next()
		}
	} else {
		return // of the environment, if anything
	}
	v.exported = true
	in.env.vars[name] = &v
}

// forget makes variables unknown: they are read from somewhere.
func (in *interpreter) forget(names ...string) {
	for _, name := range names {
		old := in.env.vars[name]
		in.env.vars[name] = &variable{unknown: true, exported: old != nil && old.exported}
	}
}

// newAssignment is an assignment here and now.
func (in *interpreter) newAssignment(name string, value Word, at int) *Assignment {
	return &Assignment{
		Name: name, Value: value, At: at, Seq: in.budget.next(), Depth: in.depth, Via: in.via,
		Branch: in.branch, Inherited: slices.ContainsFunc(value.Refs(), func(r *Ref) bool { return r.Name == name && r.Default != nil }),
	}
}
