package ansible_test

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml/parser"

	"github.com/dsbuild/dsbuild/internal/mistake"
	"github.com/dsbuild/dsbuild/inventory/ansible"
)

// read reads a file with the reader for its ending.
func read(t testing.TB, path string) (*ansible.Inventory, error) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	wrong := mistake.List{Lines: lines}
	var inv *ansible.Inventory
	switch file := filepath.Base(path); filepath.Ext(path) {
	case ".json":
		inv = ansible.ReadList(file, text, &wrong)
	case ".ini":
		inv = ansible.ReadINI(file, lines, &wrong)
	default:
		inv = readYAML(t, file, text, &wrong)
	}
	return inv, wrong.Err()
}

func readYAML(t testing.TB, file string, text []byte, wrong *mistake.List) *ansible.Inventory {
	t.Helper()
	doc, err := parser.ParseBytes(text, 0)
	if err != nil {
		t.Fatal(err)
	}
	body := doc.Docs[0].Body
	if !ansible.IsYAML(body) {
		t.Errorf("%s is not recognised", file)
	}
	return ansible.ReadYAML(file, body, wrong)
}

// corpus are inventories, each with what ansible-inventory --list prints of it
// beside it (version 2.19.14; TestFullFleetAnsible asks the program again).
func corpus(t testing.TB) []string {
	t.Helper()
	var files []string
	for _, ending := range []string{"ini", "yml", "yaml"} {
		some, err := filepath.Glob(filepath.Join("testdata", "good", "*."+ending))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, some...)
	}
	if len(files) < 10 {
		t.Fatalf("%d inventories", len(files))
	}
	return files
}

// Read by dsbuild, an inventory says what Ansible says of it, in the same order.
func TestCorpus(t *testing.T) {
	for _, file := range corpus(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			got, err := read(t, file)
			if err != nil {
				t.Fatal(err)
			}
			want, err := read(t, file+".json")
			if err != nil {
				t.Fatal(err)
			}
			compare(t, got, want)
			for _, h := range got.Hosts {
				if h.At.Line == 0 || h.At.Column == 0 {
					t.Errorf("%s is nowhere: %v", h.Name, h.At)
				}
			}
		})
	}
}

// compare holds hosts, their order, groups and values against what Ansible says.
func compare(t *testing.T, got, want *ansible.Inventory) {
	t.Helper()
	if g, w := hostNames(got), hostNames(want); !slices.Equal(g, w) || len(w) == 0 {
		t.Fatalf("hosts are\n%v, Ansible has\n%v", g, w)
	}
	for i, w := range want.Hosts {
		g := got.Hosts[i]
		if !slices.Equal(g.Groups, w.Groups) {
			t.Errorf("%s is in %v, for Ansible in %v", g.Name, g.Groups, w.Groups)
		}
		if gv, wv := values(g), values(w); !reflect.DeepEqual(gv, wv) {
			for _, k := range slices.Sorted(maps.Keys(wv)) {
				if !reflect.DeepEqual(gv[k], wv[k]) {
					t.Errorf("%s: %s is %#v, for Ansible %#v", g.Name, k, gv[k], wv[k])
				}
			}
			for k := range gv {
				if _, ok := wv[k]; !ok {
					t.Errorf("%s: Ansible has no %s", g.Name, k)
				}
			}
		}
	}
}

func hostNames(inv *ansible.Inventory) []string {
	var all []string
	for _, h := range inv.Hosts {
		all = append(all, h.Name)
	}
	return all
}

func values(h ansible.Host) map[string]any {
	all := map[string]any{}
	for k, v := range h.Vars {
		all[k] = v.Value
	}
	return all
}

// Each file of testdata/bad has beside it what is said about it.
func TestBad(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "bad", "*.*"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, file := range files {
		if filepath.Ext(file) == ".golden" {
			continue
		}
		n++
		t.Run(filepath.Base(file), func(t *testing.T) {
			_, err := read(t, file)
			if err == nil {
				t.Fatal("no mistake was found")
			}
			got := err.Error() + "\n"
			golden := file + ".golden"
			if os.Getenv("UPDATE_GOLDEN") != "" {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil || got != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s\n%v", got, want, err)
			}
		})
	}
	if n < 4 {
		t.Errorf("%d files", n)
	}
}

// What is encrypted has no value, and what is not for plays of dsbuild's is left out.
func TestSecretsAndOthers(t *testing.T) {
	text := []byte("g:\n  hosts:\n    a:\n      ansible_password: !vault |\n        $ANSIBLE_VAULT;1.1;AES256\n        6162\n      other: 1\n")
	var wrong mistake.List
	yml := readYAML(t, "x.yml", text, &wrong)
	list := ansible.ReadList("x", []byte(`{"_meta":{"hostvars":{"a":{"ansible_password":{"__ansible_vault":"x"},"other":1}}},"g":{"hosts":["a"]}}`), &wrong)
	for _, inv := range []*ansible.Inventory{yml, list} {
		if err := wrong.Err(); err != nil {
			t.Fatal(err)
		}
		want := map[string]any{"ansible_password": ansible.Secret{}}
		if got := values(inv.Hosts[0]); !reflect.DeepEqual(got, want) {
			t.Errorf("got %#v", got)
		}
	}
}

// A dynamic inventory may leave out "all", and write groups as bare lists.
func TestBareList(t *testing.T) {
	const text = `{"_meta": {"hostvars": {"c": {"ansible_port": 1}, "b": {}}}, "web": ["a"], "db": {"hosts": ["a", "d"], "vars": {"ansible_user": "u"}}}`
	if !ansible.IsList(text) || ansible.IsList(`{"nodes": []}`) || ansible.IsList("{x") {
		t.Error("not recognised")
	}
	var wrong mistake.List
	inv := ansible.ReadList("x", []byte(text), &wrong)
	if err := wrong.Err(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, h := range inv.Hosts {
		got = append(got, fmt.Sprint(h.Name, h.Groups, values(h)))
	}
	want := []string{"b[] map[]", "c[] map[ansible_port:1]", "a[db web] map[ansible_user:u]", "d[db] map[ansible_user:u]"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

// Hostile sizes end in time with a mistake.
func TestTooLarge(t *testing.T) {
	var chain, wide bytes.Buffer
	for i := range 20_000 {
		fmt.Fprintf(&chain, "[g%d:children]\ng%d\n", i, i+1)
	}
	chain.WriteString("[g20000]\nx[1:100]\n")
	for i := range 30 {
		fmt.Fprintf(&wide, "[g%d]\nx[1:90000]\n[g%d:vars]\nansible_user=u\n", i, i)
	}
	for name, text := range map[string]string{
		"many hosts":    "a[1:60000]\nb[1:60000]\n",
		"one range":     "a[1:60000]b[1:60000]\n",
		"long chain":    chain.String(),
		"many in many":  wide.String(),
		"many brackets": "a" + strings.Repeat("[1:9]", 100) + "\n",
	} {
		var wrong mistake.List
		ansible.ReadINI("x", strings.Split(text, "\n"), &wrong)
		if name != "long chain" && wrong.Err() == nil {
			t.Errorf("%s: no mistake", name)
		}
	}
}
