package inventory_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// asList prints an inventory in INI, as dsbuild writes it, as the list of
// ansible-inventory: with Python's own words and literals, as Ansible reads them.
const asList = `
import ast, json, shlex, sys
def value(text):
    try: return ast.literal_eval(text)
    except (ValueError, SyntaxError): return text
section, hosts, groups, shared = "", {}, {}, {}
for line in sys.stdin.read().split("\n"):
    if not line: continue
    if line[0] == "[":
        section = line[1:-1]
    elif section == "all:vars":
        name, _, text = line.partition("=")
        shared[name] = value(text)
    elif section:
        groups.setdefault(section, {"hosts": []})["hosts"].append(line)
    else:
        words = shlex.split(line, comments=True)
        hosts[words[0]] = {n: value(t) for n, _, t in (w.partition("=") for w in words[1:])}
json.dump({"_meta": {"hostvars": {h: {**shared, **own} for h, own in hosts.items()}}, **groups}, sys.stdout)
`

// listedByPython turns what is written for Ansible into the list that
// ansible-inventory would print. TestFullFleetAnsibleInventory asks that program.
func listedByPython(t *testing.T, ini string) string {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	cmd := exec.CommandContext(t.Context(), python, "-c", asList)
	cmd.Stdin, cmd.Stderr = strings.NewReader(ini), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
