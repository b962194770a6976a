package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/tools/go/callgraph"
	"golang.org/x/tools/go/callgraph/cha"
	"golang.org/x/tools/go/callgraph/vta"
	gopackages "golang.org/x/tools/go/packages"
	"golang.org/x/tools/go/ssa"
	"golang.org/x/tools/go/ssa/ssautil"

	"github.com/dsbuild/dsbuild/internal/testkit/needs"
)

// program is dsbuild without its tests.
type program struct {
	folder    string                // of the module
	packages  []*gopackages.Package // the module's
	functions map[string]*ssa.Function
	calls     *callgraph.Graph // of all commands together
}

var loaded = sync.OnceValues(loadProgram)

func load(t *testing.T) *program {
	t.Helper()
	p, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// loadPackages reads the program's sources for a system, and those of its modules without the bodies of their functions. It needs
// no compiled packages, which are not always there.
func loadPackages(folder string, system ...string) ([]*gopackages.Package, error) {
	return gopackages.Load(&gopackages.Config{
		Mode: gopackages.LoadAllSyntax &^ gopackages.NeedExportFile,
		Dir:  folder,
		Env:  slices.Concat(os.Environ(), []string{"CGO_ENABLED=0"}, system),
		ParseFile: func(files *token.FileSet, name string, source []byte) (*ast.File, error) {
			file, err := parser.ParseFile(files, name, source, parser.SkipObjectResolution)
			if err == nil && !strings.HasPrefix(name, folder+string(filepath.Separator)) {
				for _, d := range file.Decls {
					if f, ok := d.(*ast.FuncDecl); ok {
						f.Body = nil
					}
				}
			}
			return file, err
		},
	}, "./cmd/dsbuild")
}

// TestOtherSystems reads the program as compilers for the operating systems besides CI's own do. No line of dsbuild depends on the
// processor.
func TestOtherSystems(t *testing.T) {
	needs.Time(t)
	folder, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	for goos, arch := range map[string]string{"darwin": "arm64", "windows": "amd64"} {
		all, err := loadPackages(folder, "GOOS="+goos, "GOARCH="+arch)
		if err != nil {
			t.Fatal(err)
		}
		files := 0
		gopackages.Visit(all, nil, func(one *gopackages.Package) {
			if !strings.HasPrefix(one.PkgPath, Module+"/") {
				return
			}
			for _, err := range one.Errors {
				t.Errorf("%s: %v", goos, err)
			}
			for _, file := range one.GoFiles {
				if strings.HasSuffix(file, "_"+goos+".go") {
					files++
				}
			}
		})
		if goos == "windows" && files == 0 {
			t.Error("no file of windows was read")
		}
	}
}

func loadProgram() (*program, error) {
	folder, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	all, err := loadPackages(folder)
	if err != nil {
		return nil, err
	}
	p := &program{folder: folder, functions: map[string]*ssa.Function{}}
	compiled := ssa.NewProgram(all[0].Fset, ssa.InstantiateGenerics)
	gopackages.Visit(all, nil, func(one *gopackages.Package) {
		if !strings.HasPrefix(one.PkgPath, Module+"/") {
			compiled.CreatePackage(one.Types, nil, nil, true)
			return
		}
		compiled.CreatePackage(one.Types, one.Syntax, one.TypesInfo, true)
		p.packages = append(p.packages, one)
		if len(one.Errors) > 0 {
			err = one.Errors[0]
		}
	})
	if err != nil {
		return nil, err
	}
	compiled.Build()
	functions := ssautil.AllFunctions(compiled)
	for f := range functions {
		p.functions[strings.ReplaceAll(f.String(), Module+"/", "")] = f
	}
	p.calls = callsOf(functions, cha.CallGraph(compiled))
	return p, nil
}

// callsOf returns the calls of some functions. It follows interfaces and func values by the types of variables (VTA): to all that
// these functions put there. before is a graph with too many calls.
func callsOf(functions map[*ssa.Function]bool, before *callgraph.Graph) *callgraph.Graph {
	calls := vta.CallGraph(functions, before)
	for f := range functions {
		for _, block := range f.Blocks {
			for _, instruction := range block.Instrs {
				call, ok := instruction.(ssa.CallInstruction)
				if !ok || call.Common().StaticCallee() == nil || call.Common().StaticCallee().Blocks != nil {
					continue
				}
				for _, arg := range call.Common().Args { // of another module's function, such as sync.WaitGroup.Go
					if closure, ok := arg.(*ssa.MakeClosure); ok {
						called := closure.Fn.(*ssa.Function) //nolint:revive // it always is
						callgraph.AddEdge(calls.CreateNode(f), nil, calls.CreateNode(called))
					}
				}
			}
		}
	}
	return calls
}

// callsFrom returns a command's place in the graph of its calls, if it does not call the functions without, named as in
// (*fleet/deploy.Deploy).Apply. What only other commands put into a variable falls away when the graph is made again, of the functions
// that the command reaches.
func (p *program) callsFrom(t *testing.T, command string, without ...string) *callgraph.Node {
	t.Helper()
	apart := map[*ssa.Function]bool{}
	for _, name := range append(without, command) {
		if p.functions[name] == nil {
			t.Fatalf("no function is called %s", name)
		}
		apart[p.functions[name]] = name != command
	}
	for calls, count := p.calls, 0; ; {
		node := calls.CreateNode(p.functions[command])
		reached, open := map[*ssa.Function]bool{}, []*callgraph.Node{node}
		for len(open) > 0 {
			n := open[len(open)-1]
			open = open[:len(open)-1]
			if reached[n.Func] || apart[n.Func] {
				continue
			}
			reached[n.Func] = true
			for _, e := range n.Out {
				open = append(open, e.Callee)
			}
		}
		if len(reached) == count {
			return node
		}
		calls, count = callsOf(reached, calls), len(reached)
	}
}

// file returns the file of the module that has a function; "" if there is none.
func (p *program) file(f *ssa.Function) string {
	if f.Synthetic != "" && f.Origin() == nil { // a wrapper that the compiler makes
		return ""
	}
	file, err := filepath.Rel(p.folder, f.Prog.Fset.Position(f.Pos()).Filename)
	if err != nil || strings.HasPrefix(file, "..") {
		return ""
	}
	return file
}

// outermost returns the function in which f is written; f itself, unless it is a closure.
func outermost(f *ssa.Function) *ssa.Function {
	for f.Parent() != nil {
		f = f.Parent()
	}
	return f
}
