package compat

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/lineerr"
)

// opMeant returns the op that a name means beyond doubt: its build variable, or a name that people use for it.
func opMeant(all []Op, name string) (Op, bool) {
	word := opWord(name)
	i := slices.IndexFunc(all, func(o Op) bool {
		return word == opWord(o.Name) || word == opWord(o.Variable) ||
			slices.ContainsFunc(o.Also, func(a string) bool { return opWord(a) == word })
	})
	switch {
	case word == AllOps || word == "ops": // DS_BUILD_OPS
		return Op{Name: AllOps}, true
	case i < 0:
		return Op{}, false
	}
	return all[i], true
}

// opWord reduces the forms of an op's name: DS_BUILD_AIO=1, async-io, AsyncIOBuilder.
func opWord(name string) string {
	word, _, _ := strings.Cut(strings.ToLower(strings.TrimSpace(name)), "=")
	word = strings.NewReplacer("-", "", "_", "", "attention", "attn").Replace(word)
	for _, ending := range []string{"builder", "op"} {
		word = strings.TrimSuffix(word, ending)
	}
	return strings.TrimPrefix(word, "dsbuild")
}

// hasOp reports whether a request may name an op so.
func hasOp(all []Op, name string) bool {
	return name == AllOps || name == ProvenOps || slices.ContainsFunc(all, func(o Op) bool { return o.Name == name })
}

// CheckOp returns a *ConflictError for an unknown op.
func (t *Tables) CheckOp(name string) error {
	if hasOp(t.Ops, name) {
		return nil
	}
	return &ConflictError{Conflicts: []Conflict{t.unknownOp(name)}}
}

// unknownOp returns the conflict for an unknown op. It suggests similar names only as a question.
func (t *Tables) unknownOp(name string) Conflict {
	c := Conflict{What: fmt.Sprintf("unknown op %q", name)}
	if op, ok := opMeant(t.Ops, name); ok {
		c.Advice = didYouMean(op.Name)
		return c
	}
	if i := slices.IndexFunc(t.MissingOps, func(m MissingOp) bool { return opWord(m.Name) == opWord(name) }); i >= 0 {
		c.What = fmt.Sprintf("cannot build op %q: %s", name, t.MissingOps[i].Why)
		c.Advice = []string{"remove " + name + " from --ops"}
		return c
	}
	if several := severalNames(name, func(n string) bool { return t.CheckOp(n) == nil }); several != "" {
		c.Advice = []string{"separate them with commas: --ops " + several}
		return c
	}
	var known, parts []string
	for _, o := range t.Ops {
		known = append(known, o.Name)
		if word := opWord(name); len(word) > 3 && strings.Contains(opWord(o.Name), word) {
			parts = append(parts, o.Name)
		}
	}
	c.Advice = []string{cmp.Or(lineerr.DidYouMean(name, known), "list the ops: dsbuild ops")}
	if len(parts) > 0 {
		c.Advice = didYouMean(parts...)
	}
	return c
}
