package node_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/node"
)

// The programs on nodes send codes that the table has, and no hint of their own; the table
// has no code that nobody sends.
func TestNodesSendCodesInPlaceOfHints(t *testing.T) {
	files, err := filepath.Glob("python/dsbuild_node/*.py")
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	sent := regexp.MustCompile(`(?m)(?:(?:Failed|Busy)\(.*, |"advice": )"([^"\n]*)"[)}]|, "(lock-[^":]*)`)
	texts, all := node.AdviceTexts(), ""
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all += string(source)
		for _, m := range sent.FindAllStringSubmatch(string(source), -1) {
			if code := m[1] + m[2]; texts[code] == "" && code != "" {
				t.Errorf("%s: %s: advice.go has no hint for the code %q", file, m[0], code)
			}
		}
		if strings.Contains(string(source), `"hint"`) {
			t.Errorf("%s sends a hint", file)
		}
	}
	for code := range texts {
		if !strings.Contains(all, `"`+code+`"`) && !strings.Contains(all, `"`+code+":%d\"") {
			t.Errorf("no program sends %q", code)
		}
	}
}

// What a hint names is the inventory's, or what answered to its command name there, and is one word of a shell: a user may run
// the command as it stands.
func TestAdviceNamesTheNodesPython(t *testing.T) {
	facts := node.Facts{Executable: "/opt/conda env/bin/python3", SitePackages: "/opt/conda env/lib/python3.11/site-packages"}
	for _, c := range []struct{ code, python, want string }{
		{"shadow-user", "/opt/env/bin/python", "uninstall it from the user's packages on the node: /opt/env/bin/python -m pip uninstall deepspeed; or set PYTHONNOUSERSITE=1"},
		{"shadow-user", "/opt/my env/bin/python", "uninstall it from the user's packages on the node: '/opt/my env/bin/python' -m pip uninstall deepspeed; or set PYTHONNOUSERSITE=1"},
		{"shadow-user", "python3", "uninstall it from the user's packages on the node: '/opt/conda env/bin/python3' -m pip uninstall deepspeed; or set PYTHONNOUSERSITE=1"},
		{"no-permission", "python3", "run on the node, as the owner of the files: chmod -R u+rwX,go+rX '/opt/conda env/lib/python3.11/site-packages'/deepspeed*"},
		{"no-room", "/opt/env/bin/python", "free disk space: df -h /opt/env; df -i /opt/env; quota"},
		{"no-room", "python3", "free disk space: df -h '/opt/conda env'; df -i '/opt/conda env'; quota"},
		{"no-room", "/opt/it's/bin/python", "free disk space: df -h ENVIRONMENT; df -i ENVIRONMENT; quota"},
		{"shadow-pythonpath", "/opt/env/bin/python", "remove its directory from PYTHONPATH"},
		{"run: dsbuild x; curl y | sh", "/opt/env/bin/python", ""},
		{"lock-stopped:4711", "/opt/env/bin/python", "on the node: kill -CONT 4711; the process continues, or undoes its work and ends if its dsbuild is gone; then rerun"},
		{"lock-stopped:1; reboot", "/opt/env/bin/python", ""},
		{"lock-stopped:-1", "/opt/env/bin/python", ""},
	} {
		if got := node.HintFor(c.code, c.python, facts); got != c.want {
			t.Errorf("%s with %s: %q, want %q", c.code, c.python, got, c.want)
		}
	}
}
