package inventory_test

import (
	"bytes"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/inventory"
)

var update = flag.Bool("update", false, "write the golden files anew")

func read(t *testing.T, text string) *inventory.Inventory {
	t.Helper()
	inv, err := inventory.Read(strings.NewReader(text), "inventory.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return inv
}

func names(inv *inventory.Inventory) []string {
	var all []string
	for _, h := range inv.Hosts {
		all = append(all, h.Name)
	}
	return all
}

func TestDesignExample(t *testing.T) {
	t.Setenv("HOME", "/home/me")
	path := filepath.Join("testdata", "good", "design.yaml")
	inv, err := inventory.Open(t.Context(), path, inventory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	dir, _ := filepath.Abs(filepath.Dir(path))
	gpu := func(name string) inventory.Host {
		return inventory.Host{
			Name: name, Node: name, Address: name, Port: 22, User: "train", Sudo: "root",
			IdentityFile: filepath.Join(dir, "keys", "id_ed25519"), ProxyJump: "bastion.example.org",
			Groups: []string{"a100"}, Python: "/opt/train/venv/bin/python", Position: path + ":5:12",
		}
	}
	cpu := func(env, python string) inventory.Host {
		return inventory.Host{
			Name: "cpu1/" + env, Node: "cpu1", Address: "10.0.0.7", User: "train", Python: python,
			Env:   map[string]string{"LD_LIBRARY_PATH": "/opt/cuda/lib64"},
			Setup: "module load gcc/12", ExecPrefix: []string{"apptainer", "exec", "/images/train.sif"},
			Slots: 8, Position: path + ":11:12",
		}
	}
	want := []inventory.Host{
		gpu("gpu01"), gpu("gpu02"), cpu("train", "/srv/train/bin/python"), cpu("dev", "/srv/dev/bin/python"),
	}
	if !reflect.DeepEqual(inv.Hosts, want) || inv.Path != path || inv.KnownHosts != "/home/me/.ssh/known_hosts" {
		t.Errorf("got:\n%+v\nwant hosts:\n%+v", inv, want)
	}
}

// sudo is nobody's, root's, or some user's; false takes back a default.
func TestSudo(t *testing.T) {
	inv := read(t, `
defaults: {sudo: true}
nodes:
  - hosts: a
  - {hosts: b, sudo: false}
  - {hosts: c, sudo: ops}
  - {hosts: d, sudo: ops, envs: [{name: e, sudo: false}, {name: f, sudo: true}, {name: g}]}
`)
	var got []string
	for _, h := range inv.Hosts {
		got = append(got, h.Name+"="+h.Sudo)
	}
	if want := "a=root b= c=ops d/e= d/f=root d/g=ops"; strings.Join(got, " ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, bad := range []string{`"true"`, "yes", `""`, "1", "[a]", "-x", "a b"} {
		if _, err := inventory.Read(strings.NewReader("nodes: [{hosts: a, sudo: "+bad+"}]"), "x.yaml"); err == nil {
			t.Errorf("%s was read", bad)
		}
	}
}

func TestMerging(t *testing.T) {
	inv := read(t, `
defaults:
  {user: train, port: 2222, groups: [all], env: {A: 1, B: x}, setup: module load a, exec_prefix: [srun], proxy_jump: bastion}
nodes:
  - hosts: a
  - hosts: b
    user: root
    port: 22
    groups: [g, all]
    env: {B: "y", C: true}
    setup: ""
    exec_prefix: []
    proxy_jump: ""
    envs:
      - name: e
        env:
          C: 1.50
          D: |-
            two
            lines
        user: eve
      - name: f
        setup: "conda activate f"
`)
	type said struct {
		name, user string
		port       int
		groups     []string
		env        map[string]string
		setup      string
		prefix     []string
		jump       string
	}
	var got []said
	for _, h := range inv.Hosts {
		got = append(got, said{h.Name, h.User, h.Port, h.Groups, h.Env, h.Setup, h.ExecPrefix, h.ProxyJump})
	}
	both := []string{"all", "g"}
	want := []said{
		{"a", "train", 2222, []string{"all"}, map[string]string{"A": "1", "B": "x"}, "module load a", []string{"srun"}, "bastion"},
		{"b/e", "eve", 22, both, map[string]string{"A": "1", "B": "y", "C": "1.50", "D": "two\nlines"}, "", []string{}, ""},
		{"b/f", "root", 22, both, map[string]string{"A": "1", "B": "y", "C": "true"}, "conda activate f", []string{}, ""},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got:\n%+v\nwant:\n%+v", got, want)
	}
}

func TestHostsDoNotShareMemory(t *testing.T) {
	inv := read(t, "nodes: [{hosts: 'a[1-2]', env: {A: x}, groups: [g], exec_prefix: [w]}]")
	h := inv.Hosts[0]
	h.Env["A"], h.Groups[0], h.ExecPrefix[0] = "changed", "changed", "changed"
	if other := inv.Hosts[1]; other.Env["A"] != "x" || other.Groups[0] != "g" || other.ExecPrefix[0] != "w" {
		t.Errorf("a change of one host changed another: %+v", other)
	}
}

func TestPaths(t *testing.T) {
	t.Setenv("HOME", "/home/me")
	wd, _ := os.Getwd()
	for _, c := range []struct{ path, file, want string }{
		{"/etc/dsbuild/inventory.yaml", "known_hosts", "/etc/dsbuild/known_hosts"},
		{"/etc/dsbuild/inventory.yaml", "../a/./b", "/etc/a/b"},
		{"/etc/dsbuild/inventory.yaml", "/x", "/x"},
		{"/etc/dsbuild/inventory.yaml", "~/x", "/home/me/x"},
		{"sub/inventory.yaml", "x", filepath.Join(wd, "sub", "x")},
		{"-", "x", filepath.Join(wd, "x")},
	} {
		inv, err := inventory.Read(strings.NewReader("known_hosts: "+c.file+"\nnodes: [{hosts: a, identity_file: "+c.file+"}]"), c.path)
		if err != nil {
			t.Fatal(err)
		}
		if inv.KnownHosts != c.want || inv.Hosts[0].IdentityFile != c.want {
			t.Errorf("%s in %s: %s and %s, want %s", c.file, c.path, inv.KnownHosts, inv.Hosts[0].IdentityFile, c.want)
		}
	}
}

// Each file of testdata/bad has beside it what is said about it.
func TestBadInventories(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "bad", "*"))
	files = slices.DeleteFunc(files, func(file string) bool { return filepath.Ext(file) == ".golden" })
	if err != nil || len(files) < 20 {
		t.Fatalf("%d files, error %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			inv, err := inventory.Read(bytes.NewReader(data), "inventory"+filepath.Ext(file))
			mustBeWrong(t, inv, err, strings.TrimSuffix(file, ".yaml")+".golden")
		})
	}
}

// mustBeWrong compares the mistakes of an inventory with a file.
func mustBeWrong(t *testing.T, inv *inventory.Inventory, err error, file string) {
	t.Helper()
	if err == nil {
		inv, err = inv.Select("")
	}
	var wrong *inventory.Error
	if !errors.As(err, &wrong) || inv != nil {
		t.Fatalf("error is %v (%T)", err, err)
	}
	if wrong.ExitCode() != 2 {
		t.Errorf("exit code %d", wrong.ExitCode())
	}
	got := err.Error() + "\n"
	if h := wrong.Hint(); h != "" {
		got += "hint: " + h + "\n"
	}
	golden(t, file, got)
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestUnreadable(t *testing.T) {
	_, err := inventory.Open(t.Context(), "no/such/file.yaml", inventory.Options{})
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error is %v", err)
	}
	if want := "no/such/file.yaml: cannot read the inventory: no such file or directory"; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
	if _, err = inventory.Open(t.Context(), t.TempDir(), inventory.Options{}); err == nil {
		t.Error("a folder was read")
	}
	_, err = inventory.Read(bytes.NewReader(make([]byte, inventory.MaxSize+1)), "big.yaml")
	if want := "big.yaml: file is larger than 16 MiB"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %q", err, want)
	}
	for _, data := range []string{"\xff\xfe", "a\x00b"} {
		if _, err := inventory.Read(strings.NewReader(data), "x"); err == nil {
			t.Errorf("%q was read", data)
		}
	}
}

func TestManyProblemsAreCut(t *testing.T) {
	_, err := inventory.Read(strings.NewReader("nodes:\n"+strings.Repeat("- {}\n", 1000)), "x")
	var wrong *inventory.Error
	if !errors.As(err, &wrong) || len(wrong.Problems) != 1000 {
		t.Fatalf("error is %v", err)
	}
	if text := err.Error(); !strings.HasSuffix(text, "and 980 more problems") || len(text) > 10_000 {
		t.Errorf("got %d bytes: %s", len(text), text)
	}
}

func TestSelect(t *testing.T) {
	inv := read(t, `
nodes:
  - {hosts: "gpu[01-04]", groups: [a100, gpu]}
  - {hosts: "gpu[05-06]", groups: [h100, gpu]}
  - {hosts: cpu1, envs: [{name: train}, {name: dev}]}
`)
	for expr, want := range map[string]string{
		"":                         "gpu01 gpu02 gpu03 gpu04 gpu05 gpu06 cpu1/train cpu1/dev",
		"gpu02":                    "gpu02",
		"h100,gpu01":               "gpu01 gpu05 gpu06",
		"gpu[02-03,05]":            "gpu02 gpu03 gpu05",
		"gpu,!a100":                "gpu05 gpu06",
		"!gpu":                     "cpu1/train cpu1/dev",
		"cpu1":                     "cpu1/train cpu1/dev",
		"cpu1/dev , gpu01":         "gpu01 cpu1/dev",
		"a100, !gpu[02-03],! cpu1": "gpu01 gpu04",
		"gpu*":                     "gpu01 gpu02 gpu03 gpu04 gpu05 gpu06",
		"gpu0?,!gpu0[1-2]":         "gpu03 gpu04 gpu05 gpu06",
		"*":                        "gpu01 gpu02 gpu03 gpu04 gpu05 gpu06 cpu1/train cpu1/dev",
		"?100":                     "gpu01 gpu02 gpu03 gpu04 gpu05 gpu06",
		"[a-c]100":                 "gpu01 gpu02 gpu03 gpu04",
		"[!a]100":                  "gpu05 gpu06",
		"gpu0[!1-4]":               "gpu05 gpu06",
		"[ch]*1":                   "cpu1/train cpu1/dev",
		"cpu*/d*":                  "cpu1/dev",
		"!*0[1-5],!c*":             "gpu06",
		"gpu[01-02]*":              "gpu01 gpu02",
		"[gx]pu[05-06]":            "gpu05 gpu06",
	} {
		got, err := inv.Select(expr)
		if err != nil {
			t.Errorf("%q: %v", expr, err)
		} else if joined := strings.Join(names(got), " "); joined != want {
			t.Errorf("%q: got %s, want %s", expr, joined, want)
		} else if len(got.Hosts)+len(got.Outside) != len(inv.Hosts) {
			t.Errorf("%q leaves out %+v, want all others", expr, got.Outside)
		}
	}
	if len(inv.Hosts) != 8 {
		t.Error("Select changed what it selects from")
	}
}

func TestSelectErrors(t *testing.T) {
	inv := read(t, "nodes: [{hosts: 'gpu[01-04]', groups: [a100]}]")
	for expr, want := range map[string]string{
		"gpu1,b":   "unknown node or group \"gpu1\"\n  hint: did you mean gpu01?\nunknown node or group \"b\"\n  hint: list them: dsbuild nodes inventory.yaml",
		"!gpu09":   `unknown node or group "gpu09"`,
		"gpu[1-":   `--limit "gpu[1-": unmatched [`,
		"gpu01,,":  `--limit "gpu01,,": missing name` + "\n" + `--limit "gpu01,,": missing name`,
		"a100/dev": `unknown node or group "a100/dev"`,
		"!a100":    `no nodes match --limit "!a100"`,
		"cpu*":     `unknown node or group "cpu*"`,
		"gpu[a":    `--limit "gpu[a": unmatched [`,
		`gpu\*`:    `invalid character in --limit "gpu\\*"`,
		"gpu[c-a]": `unknown node or group "gpu[c-a]"`,
		"!*":       `no nodes match --limit "!*"`,
	} {
		_, err := inv.Select(expr)
		var wrong *inventory.Error
		if !errors.As(err, &wrong) || wrong.ExitCode() != 2 || err.Error() != want {
			t.Errorf("%q: got %v, want %s", expr, err, want)
		}
	}
	if _, err := inv.Select("x[1-100000]"); err == nil || strings.Count(err.Error(), "\n") > 50 {
		t.Errorf("a wall of errors: %v", err)
	}
}

// A selection costs no more than the inventory that it selects from.
func TestSelectIsBounded(t *testing.T) {
	needs.Time(t)
	inv := read(t, "nodes: [{hosts: 'gpu[1-30000]', groups: [a100]}]")
	for expr, want := range map[string]string{
		strings.Repeat("gpu[1-30000],", 2000) + "gpu1": "too many nodes selected",
		"gpu[1-30000]*":                        "too many nodes selected",
		strings.Repeat("gpu*,", 2000):          "too many nodes selected",
		strings.Repeat("a100,", 2000):          "too many nodes selected",
		strings.Repeat("x*,", 2000):            "unknown node or group",
		strings.Repeat("x,", 20_000):           "unknown node or group",
		"*" + strings.Repeat("*a", 60):         "unknown node or group",
		"a100,gpu[1-30000],gpu*,!gpu[1-20000]": "",
	} {
		_, err := inv.Select(expr)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v", expr, err)
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, pattern := range []string{"good/*.yaml", "bad/*.yaml"} {
		files, err := filepath.Glob(filepath.Join("testdata", pattern))
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		inv, err := inventory.Read(bytes.NewReader(data), "inventory.yaml")
		if err != nil {
			var wrong *inventory.Error
			if !errors.As(err, &wrong) || len(wrong.Problems) == 0 || err.Error() == "" || inv != nil {
				t.Fatalf("error without a problem: %#v", err)
			}
			return
		}
		if len(inv.Hosts) == 0 || len(inv.Hosts) > inventory.MaxNames {
			t.Fatalf("%d hosts", len(inv.Hosts))
		}
		all := names(inv)
		slices.Sort(all)
		if len(slices.Compact(all)) != len(inv.Hosts) {
			t.Fatal("two hosts of one name")
		}
		for _, h := range inv.Hosts {
			if h.Node == "" || h.Address == "" || h.Python == "" || h.Port < 0 || h.Port > 65535 || h.Position == "" {
				t.Fatalf("incomplete: %+v", h)
			}
		}
	})
}
