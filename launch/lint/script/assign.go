package script

import (
	"slices"

	"mvdan.cc/sh/v3/syntax"
)

// evalAssignment evaluates NAME=value, NAME+=value and NAME=(...).
func (e expander) evalAssignment(a *syntax.Assign) *Assignment {
	name := a.Name.Value
	old := e.env.vars[name]
	value := e.expandValue(a.Value)
	var array []Word
	if a.Array != nil {
		array = []Word{}
		for _, item := range a.Array.Elems {
			if item.Value != nil {
				array = append(array, e.expandFields([]*syntax.Word{item.Value})...)
			}
		}
	}
	if value.At == 0 && a.Value == nil {
		value.At = e.src.placeOf(a.Pos())
	}
	if a.Append && old != nil && !old.unknown {
		array, value = appendToVariable(old, array, value)
		e.budget.chars += len(value.Chars) + len(array)
	}
	made := e.newAssignment(name, value, e.src.placeOf(a.Pos()))
	made.Array = array
	element := a.Index != nil || a.Array == nil && !a.Append && old != nil && old.array != nil
	if a.Append && (old == nil || old.unknown) || element {
		made.Inherited = true
		made.Value = Word{Chars: e.unknownText(a.Pos(), &Ref{Name: name, Assigned: true}, inQuotes), At: made.At}
		made.Array = nil
	}
	return made
}

// appendToVariable returns the value after NAME+=...
func appendToVariable(old *variable, array []Word, value Word) ([]Word, Word) {
	switch {
	case array != nil && old.array != nil:
		array = slices.Concat(old.array, array)
	case array != nil && len(old.value.Chars) > 0:
		array = append([]Word{old.value}, array...)
	case array == nil:
		value = Word{Chars: slices.Concat(old.value.Chars, value.Chars), At: value.At}
	}
	if len(value.Chars) > maxWord {
		value.Chars = value.Chars[:maxWord]
	}
	if len(array) > maxCommands {
		array = array[:maxCommands]
	}
	return array, value
}
