package script

// variable is the known state of a variable at some place of the script.
type variable struct {
	value    Word
	array    []Word // nil unless it is an array
	unknown  bool   // set to an unknown value
	unset    bool   // certainly not set: unset NAME
	exported bool
	record   *Assignment
	hidden   *Assignment // set without export by the parent shell
}

// environment are the variables of a shell.
type environment struct {
	vars      map[string]*variable // no value is nil
	exportAll bool                 // set -a
}

func newEnvironment() *environment { return &environment{vars: map[string]*variable{}} }

// setOrDelete sets a variable, or forgets all about it if v is nil.
func (e *environment) setOrDelete(name string, v *variable) {
	if v == nil {
		delete(e.vars, name)
	} else {
		e.vars[name] = v
	}
}

// mergeBranches sets the variables after several branches, of which one ran. A variable
// that differs between branches becomes unknown.
func (e *environment) mergeBranches(branches []*environment) {
	names := map[string]bool{}
	for _, b := range branches {
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
			// It may be exported or not, so rules skip it.
			if record != nil {
				c := *record
				c.Inherited = true
				record = &c
			}
			e.vars[name] = &variable{unknown: true, record: record}
		}
	}
}
