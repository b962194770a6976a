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

	"github.com/dsbuild/dsbuild/internal/diagnostic"
	"github.com/dsbuild/dsbuild/inventory/ansible"
)

// readINI reads an inventory in INI; the error also says what only Ansible reads.
func readINI(t testing.TB, path string) (*ansible.Inventory, *ansible.OnlyAnsible, error) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	wrong := diagnostic.List{Lines: lines}
	inv, only := ansible.ReadINI(filepath.Base(path), lines, &wrong)
	return inv, only, wrong.Err()
}

// readList reads a file that has the output of ansible-inventory --list.
func readList(t testing.TB, path string) (*ansible.Inventory, error) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var wrong diagnostic.List
	inv := ansible.ReadList(filepath.Base(path), text, &wrong)
	return inv, wrong.Err()
}

// corpus are inventories, each with the output of ansible-inventory --list for it
// beside it (version 2.19.14; TestFullFleetAnsible asks the program again).
func corpus(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "good", "*.ini"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 7 {
		t.Fatalf("%d inventories", len(files))
	}
	return files
}

// forAnsible are the inventories of the corpus that only Ansible reads, and where
// the first thing stands that dsbuild does not read.
func forAnsible() map[string]string {
	return map[string]string{"priority.ini": "priority.ini:14:1", "values.ini": "values.ini:2:16"}
}

// dsbuild reads from a plain inventory what Ansible reads, in the same order, and
// leaves every other to Ansible.
func TestCorpus(t *testing.T) {
	for _, file := range corpus(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			got, only, err := readINI(t, file)
			if err != nil {
				t.Fatal(err)
			}
			if at, ok := forAnsible()[filepath.Base(file)]; ok != (only != nil) || ok && only.At.String() != at {
				t.Fatalf("left to Ansible: %+v, want %q", only, at)
			}
			if only != nil {
				return
			}
			want, err := readList(t, file+".json")
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

// Whatever is not plain is left to Ansible, at its place.
func TestOnlyAnsible(t *testing.T) {
	for text, want := range map[string]string{
		"x ansible_port=22 ansible_user='a'":  `x:1:32: quotes`,
		"[g]\n  x  ansible_become=true":       `x:2:6: the variable "ansible_become"`,
		"x ansible_host={{ip}}":               "x:1:3: this value of ansible_host",
		"x dsbuild_slots=0x8":                 "x:1:3: this value of dsbuild_slots",
		"x\n[all:vars]\ndsbuild_env={'A': 1}": "x:3:1: this value of dsbuild_env",
		"x ansible_host=10.0":                 "x:1:3: this value of ansible_host",
		"x ansible_host=":                     "x:1:3: this value of ansible_host",
		"x dsbuild_sudo=True":                 "x:1:3: this value of dsbuild_sudo",
		"x rack=0x8 # 'quoted":                `x:1:14: quotes`,
		"x rack=0x8 ansible_host=a.b-c # x":   "",
	} {
		var wrong diagnostic.List
		_, only := ansible.ReadINI("x", strings.Split(text, "\n"), &wrong)
		got := ""
		if only != nil {
			got = only.At.String() + ": " + only.What
		}
		if got != want || wrong.Err() != nil {
			t.Errorf("%q: %s, want %s (%v)", text, got, want, wrong.Err())
		}
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
			_, _, err := readINI(t, file)
			if filepath.Ext(file) == ".json" {
				_, err = readList(t, file)
			}
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
	var wrong diagnostic.List
	list := ansible.ReadList("x", []byte(`{"_meta":{"hostvars":{"a":{"ansible_password":{"__ansible_vault":"x"},"other":1}}},"g":{"hosts":["a"]}}`), &wrong)
	if err := wrong.Err(); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"ansible_password": ansible.Secret{}}
	if got := values(list.Hosts[0]); !reflect.DeepEqual(got, want) {
		t.Errorf("got %#v", got)
	}
}

// In the list of a dynamic inventory groups have variables: the deeper group goes
// first, then the greater ansible_group_priority, then the later name.
func TestListedGroupVariables(t *testing.T) {
	const text = `{"_meta": {"hostvars": {}},
		"a": {"hosts": ["x"], "vars": {"ansible_user": "a", "ansible_port": 1, "ansible_group_priority": 10}},
		"b": {"hosts": ["x"], "vars": {"ansible_user": "b", "ansible_port": 2, "dsbuild_python": "b"}},
		"c": {"hosts": ["x"], "vars": {"dsbuild_python": "c"}},
		"z": {"children": ["c"], "vars": {"dsbuild_python": "z", "ansible_host": "z", "ansible_group_priority": "100"}}}`
	var wrong diagnostic.List
	inv := ansible.ReadList("x", []byte(text), &wrong)
	want := map[string]any{"ansible_user": "a", "ansible_port": int64(1), "ansible_host": "z", "dsbuild_python": "c"}
	if got := values(inv.Hosts[0]); wrong.Err() != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %#v, %v", got, wrong.Err())
	}
}

// A dynamic inventory may leave out "all", and write groups as bare lists.
func TestBareList(t *testing.T) {
	const text = `{"_meta": {"hostvars": {"c": {"ansible_port": 1}, "b": {}}}, "web": ["a"], "db": {"hosts": ["a", "d"], "vars": {"ansible_user": "u"}}}`
	if !ansible.IsList(text) || ansible.IsList(`{"nodes": []}`) || ansible.IsList("{x") {
		t.Error("not recognised")
	}
	var wrong diagnostic.List
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
		var wrong diagnostic.List
		ansible.ReadINI("x", strings.Split(text, "\n"), &wrong)
		if name != "long chain" && wrong.Err() == nil {
			t.Errorf("%s: no mistake", name)
		}
	}
}
