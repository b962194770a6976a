package wheel_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

func withEntryPoints(t *testing.T, text string, scripts ...string) string {
	t.Helper()
	path := wheeltest.Packed(t, t.TempDir(), wheeltest.Options{})
	files := wheeltest.Read(t, path)
	info := strings.TrimSuffix(wheeltest.Member(t, files, ".dist-info/METADATA"), ".dist-info/METADATA")
	files[info+".dist-info/entry_points.txt"] = text
	for _, script := range scripts {
		files[info+".data/"+script] = "#!python\n"
	}
	wheeltest.Write(t, path, files)
	return path
}

func TestCommands(t *testing.T) {
	t.Parallel()
	path := withEntryPoints(t, "[console_scripts]\r\nds-one = deepspeed:main [extra]\n\n# python = no\n[gui_scripts]\n  two=deepspeed:main\n[other]\npython = deepspeed:x\n", "scripts/three", "data/bin/four")
	a, err := wheel.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	got, err := a.Commands()
	if want := []string{"ds-one", "four", "three", "two"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	if v, err := wheel.Verify(t.Context(), path); err != nil || v.Err() != nil {
		t.Errorf("%v, %v", err, v.Err())
	}
}

func TestVerifyOfCommands(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"[console_scripts]\nPython3.11 = a:b\n":                  "the command Python3.11 would replace one of the environment's own programs",
		"[gui_scripts]\npypy=a:b\n":                              "the command pypy would replace",
		"[console_scripts]\nactivate.fish = a:b\n":               "the command activate.fish would replace",
		"[console_scripts]\n../../x = a:b\n":                     `the name of the command "../../x" could`,
		"[console_scripts]\n = a:b\n":                            `the name of the command "" could`,
		"[console_scripts]\nds\n":                                "line 2 is neither a section nor an entry",
		"[console_scripts] ; python's\nds = a:b\n":               "line 1 is neither a section nor an entry",
		"[console_scripts]\nds = a:b\rpython = a:b\n":            "line 2 has a control character",
		"[console_scripts]\nds = a:b\u2028python = a:b\n":        "line 2 has a control character",
		"[console_scripts]\nds==python=a:b\n":                    "line 2 is not NAME = MODULE:FUNCTION",
		"[console_scripts]\nds = a:b python = a:b\n":             "line 2 is not NAME = MODULE:FUNCTION",
		"[console_scripts]\nds = a:b ; python = a:b\n":           "line 2 is not NAME = MODULE:FUNCTION",
		"[console_scripts]\nds = \npython = a:b\n":               "line 2 is not NAME = MODULE:FUNCTION",
		"[ console_scripts ]\npython = a:b\n":                    "the command python would replace",
		"\ufeff[console_scripts]\npython = a:b\n[gui_scripts]\n": "line 1 is neither a section nor an entry",
	} {
		v, err := wheel.Verify(t.Context(), withEntryPoints(t, text))
		if err != nil || !slices.ContainsFunc(v.Findings(), func(f string) bool { return strings.HasPrefix(f, "metadata: ") && strings.Contains(f, want) }) {
			t.Errorf("%q: %v, %q, want %q", text, err, v.Findings(), want)
		}
	}
}
