//go:build full

package ansible_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/python"
)

// program is ansible-inventory.
type program string

func newProgram(t *testing.T) program {
	t.Helper()
	ansible, err := python.Environment(t.Context(), python.EnvironmentOptions{Packages: []string{python.Ansible}, Log: func(line string) { t.Log(line) }})
	if err != nil {
		t.Fatal(err)
	}
	return program(filepath.Join(ansible, "bin", "ansible-inventory"))
}

// list is what the program says of a file, or why it cannot.
func (p program) list(t *testing.T, file string) ([]byte, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), string(p), "-i", file, "--list")
	cmd.Env = append(os.Environ(), "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED=1", "ANSIBLE_LOCALHOST_WARNING=False")
	return cmd.Output()
}

// Ansible gives the answers that are stored, refuses what dsbuild refuses, and
// reads random plain inventories as dsbuild does.
func TestFullFleetAnsible(t *testing.T) {
	p := newProgram(t)
	files := corpus(t)
	recorded, err := filepath.Glob(filepath.Join("..", "testdata", "ansible", "*.json"))
	if err != nil || len(recorded) < 7 {
		t.Fatal(recorded, err)
	}
	for i := range recorded {
		recorded[i] = strings.TrimSuffix(recorded[i], ".json")
	}
	for _, file := range slices.Concat(files, recorded) {
		text, err := p.list(t, file)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if os.Getenv("UPDATE_GOLDEN") != "" {
			if err := os.WriteFile(file+".json", text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		stored, err := os.ReadFile(file + ".json")
		if err != nil {
			t.Fatal(err)
		}
		var got, want any
		if json.Unmarshal(text, &got) != nil || json.Unmarshal(stored, &want) != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: Ansible says\n%s", file, text)
		}
	}
	for _, file := range []string{"sections.ini", "hosts.ini", "circle.ini"} {
		if text, err := p.list(t, filepath.Join("testdata", "bad", file)); err == nil {
			t.Errorf("Ansible reads %s:\n%s", file, text)
		}
	}
	const random = 25
	for seed := range uint64(random) {
		file := filepath.Join(t.TempDir(), "hosts.ini")
		text := randomINI(rand.New(rand.NewPCG(seed, 2)))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		answer, err := p.list(t, file)
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, text)
		}
		if err := os.WriteFile(file+".json", answer, 0o600); err != nil {
			t.Fatal(err)
		}
		got, only, err := readINI(t, file)
		if err != nil || only != nil {
			t.Fatalf("seed %d: %v %+v\n%s", seed, err, only, text)
		}
		want, err := readList(t, file+".json")
		if err != nil {
			t.Fatal(err)
		}
		if compare(t, got, want); t.Failed() {
			t.Fatalf("seed %d:\n%s", seed, text)
		}
	}
	t.Logf("result: dsbuild reads %d plain inventories and %d random ones as ansible-inventory 2.19.14 does: hosts, their order, groups, variables", len(files)-len(forAnsible()), random)
}

// randomINI is an inventory with groups within groups, variables of all of them,
// ports and ranges.
func randomINI(r *rand.Rand) string {
	var out strings.Builder
	groups := 2 + r.IntN(8)
	variable := func() string {
		name := []string{"ansible_user", "ansible_host", "ansible_port", "dsbuild_x", "dsbuild_y"}[r.IntN(5)]
		value := []string{"22", "0", "x", "10.0.0.9", "/a/b", "~/c", "v" + fmt.Sprint(r.IntN(9))}[r.IntN(7)]
		return name + "=" + value
	}
	hosts := func(n int) {
		for range n {
			switch r.IntN(4) {
			case 0:
				fmt.Fprintf(&out, "n[%d:%d]", r.IntN(3), 3+r.IntN(3))
			case 1:
				fmt.Fprintf(&out, "h%d:%d", r.IntN(9), 2200+r.IntN(3))
			default:
				fmt.Fprintf(&out, "h%d", r.IntN(9))
			}
			for range r.IntN(3) {
				out.WriteString(" " + variable())
			}
			out.WriteString("\n")
		}
	}
	hosts(1 + r.IntN(3))
	for i := range groups {
		fmt.Fprintf(&out, "[g%d]\n", i)
		hosts(r.IntN(4))
		if r.IntN(2) == 0 {
			fmt.Fprintf(&out, "[g%d:vars]\n%s\n%s\n", i, variable(), variable())
		}
		if i > 0 && r.IntN(2) == 0 { // only later ones: no circle
			fmt.Fprintf(&out, "[g%d:children]\ng%d\n", i, r.IntN(i))
		}
	}
	fmt.Fprintf(&out, "[all:vars]\n%s\n", variable())
	if r.IntN(2) == 0 {
		out.WriteString("[all]\n")
		hosts(2)
	}
	return out.String()
}
