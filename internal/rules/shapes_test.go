package rules

import (
	"go/ast"
	"go/types"
	"path/filepath"
	"strings"
	"testing"
)

// TestInterfaces: an interface of fleet has at most three methods, as many as a connection has.
func TestInterfaces(t *testing.T) {
	eachType(t, func(name string, of *types.Named) {
		if i, ok := of.Underlying().(*types.Interface); ok && i.NumMethods() > 3 {
			t.Errorf("%s has %d methods", name, i.NumMethods())
		}
	})
}

// TestEmbedding: no struct of fleet embeds one of fleet that embeds another, so a promoted name is at most one jump away.
func TestEmbedding(t *testing.T) {
	eachType(t, func(name string, of *types.Named) {
		for _, outer := range embedded(of) {
			if !strings.HasPrefix(outer.Obj().Pkg().Path(), Module+"/fleet") {
				continue // such as a reader of YAML with its list of mistakes
			}
			for _, inner := range embedded(outer) {
				t.Errorf("%s embeds %s, which embeds %s", name, outer.Obj().Name(), inner.Obj().Name())
			}
		}
	})
}

// TestOptions: the options of a command may contain those of a package below it, and these contain none.
func TestOptions(t *testing.T) {
	inside := func(of *types.Named) (all []*types.Named) {
		s, ok := of.Underlying().(*types.Struct)
		for i := 0; ok && i < s.NumFields() && strings.HasSuffix(of.Obj().Name(), "Options"); i++ {
			if n, ok := s.Field(i).Type().(*types.Named); ok && strings.HasSuffix(n.Obj().Name(), "Options") {
				all = append(all, n)
			}
		}
		return all
	}
	eachType(t, func(name string, of *types.Named) {
		for _, below := range inside(of) {
			for _, deepest := range inside(below) {
				t.Errorf("%s contains %s, which contains %s", name, below, deepest)
			}
		}
	})
}

// TestNodeState: a command's own record of a node is called nodeState in every package. It embeds fleet.Node, and no name of its own
// hides one of fleet.Node.
func TestNodeState(t *testing.T) {
	var records []string
	eachType(t, func(name string, of *types.Named) {
		for _, outer := range embedded(of) {
			if outer.Obj().Name() != "Node" || outer.Obj().Pkg().Path() != Module+"/fleet" {
				continue
			}
			records = append(records, name)
			if of.Obj().Name() != "nodeState" {
				t.Errorf("%s embeds fleet.Node, but is not called nodeState", name)
			}
			var own []types.Object
			for f := range of.Underlying().(*types.Struct).Fields() { //nolint:revive // it embeds something
				own = append(own, f)
			}
			for m := range of.Methods() {
				own = append(own, m)
			}
			for _, o := range own {
				if hidden, _, _ := types.LookupFieldOrMethod(types.NewPointer(outer), false, of.Obj().Pkg(), o.Name()); hidden != nil {
					t.Errorf("%s.%s hides that of fleet.Node", name, o.Name())
				}
			}
		}
	})
	if len(records) < 3 {
		t.Errorf("only %q embed fleet.Node; want the records of deploy, envdeploy and verify", records)
	}
}

// eachType calls do for each type that fleet and its packages declare.
func eachType(t *testing.T, do func(name string, of *types.Named)) {
	t.Helper()
	for _, p := range load(t).packages {
		folder := strings.TrimPrefix(p.PkgPath, Module+"/")
		if folder != "fleet" && !strings.HasPrefix(folder, "fleet/") {
			continue
		}
		for _, o := range p.TypesInfo.Defs {
			if name, ok := o.(*types.TypeName); ok && !name.IsAlias() {
				if of, ok := name.Type().(*types.Named); ok {
					do(folder+"."+name.Name(), of)
				}
			}
		}
	}
}

// embedded returns the structs that a struct embeds, directly or by pointer.
func embedded(of *types.Named) []*types.Named {
	s, ok := of.Underlying().(*types.Struct)
	if !ok {
		return nil
	}
	var all []*types.Named
	for f := range s.Fields() {
		inner := f.Type()
		if p, ok := inner.(*types.Pointer); ok {
			inner = p.Elem()
		}
		if n, ok := inner.(*types.Named); ok && f.Embedded() {
			if _, ok := n.Underlying().(*types.Struct); ok {
				all = append(all, n)
			}
		}
	}
	return all
}

// TestDocuments: the JSON that only the command line prints is in documents.go.
func TestDocuments(t *testing.T) {
	for _, p := range load(t).packages {
		for _, file := range p.Syntax {
			at := p.Fset.Position(file.Pos()).Filename
			if p.PkgPath != Module+"/cmd/dsbuild" || filepath.Base(at) == "documents.go" {
				continue
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if f, ok := n.(*ast.Field); ok && f.Tag != nil && strings.Contains(f.Tag.Value, "json:") {
					t.Errorf("%s: a field with a JSON key", p.Fset.Position(f.Pos()))
				}
				return true
			})
		}
	}
}
