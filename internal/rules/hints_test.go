package rules

import (
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"testing"
)

// TestHints: a hint names a dsbuild command, or a setting of the inventory, as a fault.Command or a fault.Setting. Only the
// command line knows the inventory, the wheel and the nodes that make the command safe to follow.
func TestHints(t *testing.T) {
	written := regexp.MustCompile(`dsbuild (env )?(deploy|verify|rollback|ship|check)\b.*\b(INVENTORY|--limit|--force)|` +
		`\bset (address|identity_file|known_hosts|port|proxy_jump|python|sudo|user): (in|to|true|false)\b`)
	asData := 0
	for _, p := range load(t).packages {
		literals := func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if text, err := strconv.Unquote(lit.Value); err == nil && written.MatchString(text) {
					t.Errorf("%s: %s", p.Fset.Position(n.Pos()), text)
				}
			}
			return true
		}
		for _, file := range p.Syntax {
			ast.Inspect(file, func(n ast.Node) bool {
				name := faultFunction(n)
				if name == "" { // texts of the command line are also usages and examples
					return p.PkgPath == Module+"/cmd/dsbuild" || literals(n)
				}
				if name == "Deploy" || name == "Set" {
					asData++
				}
				ast.Inspect(n, literals)
				return false
			})
		}
	}
	if asData < 5 {
		t.Errorf("only %d hints with a command or a setting; the test looks in the wrong place", asData)
	}
}

// faultFunction returns the name of the function of package fault that a node calls, "" if it calls none.
func faultFunction(n ast.Node) string {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return ""
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if of, ok := f.X.(*ast.Ident); !ok || of.Name != "fault" {
		return ""
	}
	return f.Sel.Name
}
