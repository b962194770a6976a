package inventory_test

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/inventory"
)

// words are texts that notations have a reason to get wrong.
func words() []string {
	return []string{
		"x", "two words", "it's", `say "hi"`, `back\slash`, "# no comment", "a #b", "a: b", "- a", "[1, 2]", "{'a': 1}", "True", "null", "~", "007", "1e3", "0x1F",
		"yes", "1.50", " spaces ", "tab\tin", "two\nlines", "ends\n", "'quoted'", "*a", "&a", "!t", "%p", "@a", "`a`", "ä ö", "emoji 😀", "a=b", "=", "|", ">", ";", "$HOME", "${x#y}",
		"None", "-5", "module load gcc/12 && source /opt/env.sh", "\u00a0x", "\u2028", "2001-01-01", "12:30:45", "<<", "?", "---", "...", "\\", "'", `"`, "a,b", "'a' \"b\"",
	}
}

// randomInventory is one as a file could give it.
func randomInventory(r *rand.Rand) *inventory.Inventory {
	word := func() string { return words()[r.IntN(len(words()))] }
	maybe := func(s string) string { return []string{"", s}[r.IntN(2)] }
	settings := func(h *inventory.Host) {
		h.User = maybe("train")
		h.Sudo = []string{"", "root", "ops"}[r.IntN(3)]
		h.IdentityFile = maybe("/keys/" + []string{"id_ed25519", "my key"}[r.IntN(2)])
		h.Python = []string{"python3", "/opt/venv/bin/python", "/opt/my venv/bin/python"}[r.IntN(3)]
		h.Setup = maybe(word())
		if r.IntN(2) == 0 {
			h.Env = map[string]string{"A": word(), "B_C": word()}
		}
		if r.IntN(2) == 0 {
			h.ExecPrefix = []string{strings.ReplaceAll(word(), "\n", ""), strings.ReplaceAll(word(), "\n", "")}
		}
	}
	inv := &inventory.Inventory{Path: "inventory.yaml", KnownHosts: maybe("/etc/known_hosts")}
	shared := inventory.Host{}
	settings(&shared)
	for i := range 1 + r.IntN(12) {
		h := shared
		if r.IntN(3) == 0 {
			settings(&h)
		}
		name := fmt.Sprintf([]string{"gpu%02d", "n%d", "r%dx1", "c%d.example.org"}[r.IntN(4)], i)
		h.Name, h.Node, h.Address = name, name, name
		if r.IntN(3) == 0 {
			h.Address = fmt.Sprintf("10.0.0.%d", i)
		}
		h.Port = []int{0, 22, 2222}[r.IntN(3)]
		h.Slots = []int{0, 8}[r.IntN(2)]
		h.ProxyJump = maybe([]string{"bastion", "a@b:22,c"}[r.IntN(2)])
		h.Groups = [][]string{nil, {"a100"}, {"h100", "gpu.all"}}[r.IntN(3)]
		if r.IntN(4) > 0 {
			inv.Hosts = append(inv.Hosts, h)
			continue
		}
		for e := range 1 + r.IntN(3) {
			of := h
			if r.IntN(2) == 0 {
				settings(&of)
			}
			of.Name = fmt.Sprintf("%s/e%d", name, e)
			inv.Hosts = append(inv.Hosts, of)
		}
	}
	return inv
}

// plainHosts are the hosts without what writing cannot keep: where they stood,
// and whether nothing was an empty list.
func plainHosts(inv *inventory.Inventory, ordered bool) []inventory.Host {
	hosts := slices.Clone(inv.Hosts)
	for i := range hosts {
		h := &hosts[i]
		h.Position = ""
		if len(h.Groups) == 0 {
			h.Groups = nil
		}
		slices.Sort(h.Groups)
		if len(h.Env) == 0 {
			h.Env = nil
		}
		if len(h.ExecPrefix) == 0 {
			h.ExecPrefix = nil
		}
	}
	if !ordered {
		slices.SortStableFunc(hosts, func(a, b inventory.Host) int { return cmp.Compare(a.Node, b.Node) })
	}
	return hosts
}

func same(t *testing.T, got, want *inventory.Inventory, ordered bool) {
	t.Helper()
	g, w := plainHosts(got, ordered), plainHosts(want, ordered)
	if got.KnownHosts != want.KnownHosts {
		t.Errorf("known hosts %q, want %q", got.KnownHosts, want.KnownHosts)
	}
	if len(g) != len(w) {
		t.Fatalf("%d hosts, want %d", len(g), len(w))
	}
	for i := range w {
		if !reflect.DeepEqual(g[i], w[i]) {
			t.Errorf("got:\n%#v\nwant:\n%#v", g[i], w[i])
		}
	}
}

func write(t *testing.T, inv *inventory.Inventory, notation string) (string, []inventory.Remark) {
	t.Helper()
	text, lost, err := inv.Write(notation)
	if err != nil {
		t.Fatal(err)
	}
	return text, lost
}

func readAs(t *testing.T, text, path string) *inventory.Inventory {
	t.Helper()
	inv, err := inventory.Read(strings.NewReader(text), path)
	if err == nil {
		inv, err = inv.Select("")
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return inv
}

// A written inventory is read again as it was: all of it in YAML, and for Ansible
// all but the order, which there follows the groups.
func TestWrittenIsReadAgain(t *testing.T) {
	t.Chdir("/")
	seeds := uint64(150)
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		inv := randomInventory(rand.New(rand.NewPCG(seed, 1)))
		for _, c := range []struct {
			notation, path string
			ordered        bool
		}{{"yaml", "/inventory.yaml", true}, {"ansible", "-", false}} {
			text, lost := write(t, inv, c.notation)
			if c.notation == "ansible" {
				text = listedByPython(t, text)
			}
			if same(t, readAs(t, text, c.path), inv, c.ordered); t.Failed() || len(lost) > 0 {
				t.Fatalf("seed %d, %s, lost %v:\n%s", seed, c.notation, lost, text)
			}
		}
	}
}

func TestHostfile(t *testing.T) {
	inv := read(t, `
defaults: {slots: 8, user: train}
nodes:
  - {hosts: "gpu[1-2]", port: 2222}
  - {hosts: gpu3, address: 10.0.0.3, slots: 4, envs: [{name: a}, {name: b, python: /b/python}]}
`)
	text, lost := write(t, inv, "hostfile")
	if want := "gpu1 slots=8\ngpu2 slots=8\n10.0.0.3 slots=4\n"; text != want {
		t.Errorf("got %q", text)
	}
	want := []inventory.Remark{
		{"gpu1", "port"}, {"gpu1", "user"}, {"gpu2", "port"}, {"gpu2", "user"}, {"gpu3", "address"}, {"gpu3", "user"}, {"gpu3", "envs"},
	}
	if !slices.Equal(lost, want) {
		t.Errorf("lost is %v", lost)
	}
	again := readAs(t, text, "-")
	for i, h := range []inventory.Host{{Name: "gpu1", Slots: 8}, {Name: "gpu2", Slots: 8}, {Name: "10.0.0.3", Slots: 4}} {
		if got := again.Hosts[i]; got.Name != h.Name || got.Address != h.Name || got.Slots != h.Slots {
			t.Errorf("got %+v", got)
		}
	}
}

func TestHostfileWithout(t *testing.T) {
	inv := read(t, "nodes: [{hosts: 'gpu[1-3],x'}, {hosts: a, address: host, slots: 1}, {hosts: b, address: host, port: 23, slots: 1}]")
	_, _, err := inv.Write("hostfile")
	var coded interface{ ExitCode() int }
	if want := "a and b have the same address host, but a hostfile has one line for each address\ngpu[1-3],x: the number of GPUs is unknown, and a hostfile needs it"; err == nil || err.Error() != want || !errors.As(err, &coded) || coded.ExitCode() != 2 || hint.Of(err) == "" {
		t.Errorf("got %v", err)
	}
}

func TestSlurm(t *testing.T) {
	for expr, want := range map[string]string{
		"gpu[01-16],cpu1":        "gpu[01-16],cpu1",
		"gpu[03,01-02]":          "gpu[01-03]",
		"n[1-2]x[1-2]":           "n1x[1-2],n2x[1-2]",
		"gpu[1-2].dc":            "gpu1.dc,gpu2.dc",
		"n[9-11],n09,n[099-100]": "n[9,09-11,099-100]",
		"a,b,[1-3]":              "a,b,[1-3]",
	} {
		text, lost := write(t, read(t, "nodes: [{hosts: '"+expr+"'}]"), "slurm")
		if text != want+"\n" || lost != nil {
			t.Errorf("%s: got %q, lost %v", expr, text, lost)
		}
	}
}

func TestAnsibleCannot(t *testing.T) {
	inv := read(t, "nodes: [{hosts: a, setup: 'echo {{x}}'}, {hosts: b, groups: [all, g]}]")
	if _, _, err := inv.Write("ansible"); err == nil || err.Error() != "a: dsbuild_setup would contain {{ or {%, which Ansible reads as a template" || hint.Of(err) == "" {
		t.Errorf("got %v", err)
	}
	b, err := inv.Select("b")
	if err != nil {
		t.Fatal(err)
	}
	text, lost := write(t, b, "ansible")
	if text != "b\n\n[g]\nb\n" || len(lost) != 1 || lost[0].Node != "b" {
		t.Errorf("got %q, lost %v", text, lost)
	}
	if _, _, err := inv.Write("toml"); err == nil {
		t.Error("written as toml")
	}
}
