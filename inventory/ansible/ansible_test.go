package ansible_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/lineerr"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/python"
	"github.com/dsbuild/dsbuild/inventory/ansible"
)

// program returns the folder of a real Ansible.
func program(t *testing.T) string {
	t.Helper()
	dir, err := python.Environment(t.Context(), python.EnvironmentOptions{Packages: []string{python.Ansible}, Log: func(line string) { t.Log(line) }})
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("needs Ansible: ", err)
	}
	return filepath.Join(dir, "bin")
}

// ask runs one of Ansible's programs on an inventory.
func ask(t *testing.T, program string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED=1", "ANSIBLE_LOCALHOST_WARNING=False")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %q: %v", filepath.Base(program), args, err)
	}
	return out
}

// mustRead reads the output of ansible-inventory --list.
func mustRead(t *testing.T, file string, text []byte) []ansible.Host {
	t.Helper()
	var wrong lineerr.List
	hosts := ansible.ReadList(file, text, &wrong)
	if err := wrong.Err(); err != nil {
		t.Fatal(err)
	}
	return hosts
}

// The list of a real ansible-inventory is read with the hosts, the order, the groups and the variables
// that Ansible itself uses, and it is the list that is stored for the tests without Ansible.
func TestAsAnsible(t *testing.T) {
	needs.Time(t)
	bin := program(t)
	good, err := filepath.Glob(filepath.Join("testdata", "good", "*.ini"))
	if err != nil || len(good) < 2 {
		t.Fatalf("%d inventories, %v", len(good), err)
	}
	recorded, err := filepath.Glob(filepath.Join("..", "testdata", "ansible", "*.json"))
	if err != nil || len(recorded) < 6 {
		t.Fatalf("%d recorded lists, %v", len(recorded), err)
	}
	for _, file := range append(good, recorded...) {
		file = strings.TrimSuffix(file, ".json")
		text := ask(t, filepath.Join(bin, "ansible-inventory"), "-i", file, "--list")
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
			t.Errorf("%s: the stored list is not Ansible's, which is\n%s", file, text)
		}
	}
	for _, file := range good {
		checkHosts(t, bin, file)
	}
}

// nodeGroups matches what Ansible prints for a host: its groups, sorted.
var nodeGroups = regexp.MustCompile(`(?m)^(\S+) \| SUCCESS => .*"group_names": (\[.*?\])`)

// checkHosts compares the hosts of a file and their groups with those that Ansible has in a play.
func checkHosts(t *testing.T, bin, file string) {
	t.Helper()
	stored, err := os.ReadFile(file + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, h := range mustRead(t, file, stored) {
		slices.Sort(h.Groups)
		got = append(got, fmt.Sprint(h.Name, h.Groups))
	}
	said := ask(t, filepath.Join(bin, "ansible"), "all", "-f", "1", "-o", "-i", file, "-m", "debug", "-a", "var=group_names")
	for _, m := range nodeGroups.FindAllSubmatch(said, -1) {
		var groups []string
		if err := json.Unmarshal(m[2], &groups); err != nil {
			t.Fatal(err)
		}
		groups = slices.DeleteFunc(groups, func(g string) bool { return g == "ungrouped" })
		want = append(want, fmt.Sprint(string(m[1]), groups))
	}
	if len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("%s: hosts %q, Ansible has %q", file, got, want)
	}
}

// Encrypted values have no value, and variables that dsbuild does not need are left out.
func TestVariables(t *testing.T) {
	t.Parallel()
	hosts := mustRead(t, "x", []byte(`{"_meta": {"hostvars": {"a": {"ansible_password": {"__ansible_vault": "x"},
		"dsbuild_setup": {"__ansible_unsafe": "{x"}, "other": 1, "slots": 8, "dsbuild_env": {"A": 1, "B": [1.5, true, null]}}}}, "g": {"hosts": ["a"]}}`))
	want := map[string]any{
		"ansible_password": ansible.Secret{}, "dsbuild_setup": "{x", "slots": int64(8),
		"dsbuild_env": map[string]any{"A": int64(1), "B": []any{1.5, true, nil}},
	}
	if got := hosts[0].Vars; !reflect.DeepEqual(got, want) {
		t.Errorf("got %#v, want %#v", got, want)
	}
}

// Hosts come group by group from "all"; what "all" does not contain follows.
func TestOrder(t *testing.T) {
	t.Parallel()
	const text = `{"_meta": {"hostvars": {"z": {}, "y": {}}}, "all": {"children": ["ungrouped", "b"]}, "ungrouped": {"hosts": ["u"]},
		"b": {"children": ["c", "d"], "hosts": ["b1"]}, "c": {"hosts": ["c1", "b1"], "children": ["e"]}, "d": {"hosts": ["d1"]},
		"e": {"hosts": ["c1"], "children": ["b"]}, "apart": {"hosts": ["a1"]}}`
	if !ansible.IsList(text) || ansible.IsList(`{"nodes": []}`) || ansible.IsList("{x") {
		t.Error("the list is not recognised, or something else is")
	}
	var got []string
	for _, h := range mustRead(t, "x", []byte(text)) {
		got = append(got, fmt.Sprint(h.Name, h.Groups))
	}
	want := []string{"u[]", "b1[b c e]", "c1[b c e]", "d1[b c d e]", "a1[apart]", "y[]", "z[]"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// What ansible-inventory --list does not print is refused, and so is too much, in time.
func TestBadLists(t *testing.T) {
	t.Parallel()
	var chain, wide, many strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&chain, `, "g%d": {"hosts": ["h%d"], "children": ["g%d"]}`, i, i, i+1)
	}
	one := `["x` + strings.Repeat(`", "x`, 90_000) + `"]`
	for i := range 30 {
		fmt.Fprintf(&wide, `, "g%d": {"hosts": %s}`, i, one)
	}
	for i := range ansible.MaxHosts + 1 {
		fmt.Fprintf(&many, `"h%d", `, i)
	}
	for text, want := range map[string]string{
		`{"_meta": {"hostvars": []}}`:                                    "x: _meta: unexpected format: JSON array in hostvars",
		`{"_meta": {}, "g": 1}`:                                          `x: group "g": unexpected format: JSON number`,
		`{"_meta": {}, "g": ["a"]}`:                                      `x: group "g": unexpected format`,
		`{"_meta": {}, "g": {"hosts": ["a"], "vars": {"dsbuild_x": 1}}}`: `x: unexpected variables in group "g"`,
		"no json":                                         "x: not a JSON object",
		`{"_meta": {}` + chain.String() + "}":             "x: too many hosts and groups",
		`{"_meta": {}` + wide.String() + "}":              "x: too many hosts and groups",
		`{"g": {"hosts": [` + many.String() + `"last"]}}`: "x: more than 100000 hosts",
	} {
		var wrong lineerr.List
		ansible.ReadList("x", []byte(text), &wrong)
		if err := wrong.Err(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.80s: got %v, want %s", text, err, want)
		}
	}
}
