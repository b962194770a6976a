package rules

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/tools/go/callgraph"
)

// TestCallTree: in the tree of calls on docs/architecture.md each function is in its file, and the function above it calls it, directly
// or through others.
func TestCallTree(t *testing.T) {
	p := load(t)
	command := p.callsFrom(t, "cmd/dsbuild.runDeploy")
	lines := regexp.MustCompile(`(?m)^( *)(\w+) +(\S+\.go)`).FindAllStringSubmatch(block(t, "the calls of deploy"), -1)
	if len(lines) < 10 {
		t.Errorf("the tree has %d functions", len(lines))
	}
	above := []*callgraph.Node{command}
	for _, line := range lines {
		depth, name, file := len(line[1])/2, line[2], line[3]
		callee := command
		callgraph.PathSearch(above[min(depth, len(above)-1)], func(n *callgraph.Node) bool {
			callee = n
			return n.Func.Name() == name && p.file(n.Func) == file
		})
		if callee.Func.Name() != name || p.file(callee.Func) != file {
			t.Errorf("the function above %s (%s) does not call it", name, file)
		}
		above = append(above[:depth+1], callee)
	}
}

// TestOrders: the agent knows each order in the sequence on docs/architecture.md.
func TestOrders(t *testing.T) {
	program, err := os.ReadFile(filepath.Join(root, "fleet", "node", "python", "dsbuild_node", "deploy.py"))
	if err != nil {
		t.Fatal(err)
	}
	_, verbs, _ := strings.Cut(string(program), "\ndef verbs(")
	verbs, _, _ = strings.Cut(verbs, "\ndef ")
	orders := regexp.MustCompile(`\bdo (\w+)`).FindAllStringSubmatch(block(t, "who asks whom"), -1)
	if len(orders) < 5 {
		t.Errorf("the sequence has %d orders", len(orders))
	}
	for _, order := range orders {
		if !strings.Contains(verbs, `"`+order[1]+`":`) {
			t.Errorf("deploy.py does not know the order %s", order[1])
		}
	}
}

// block returns the block of docs/architecture.md below a mark.
func block(t *testing.T, mark string) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(page), "<!-- text: "+mark+" -->\n```\n")
	text, _, ended := strings.Cut(text, "\n```")
	if !found || !ended {
		t.Fatalf("docs/architecture.md has no block %q", mark)
	}
	return text
}
