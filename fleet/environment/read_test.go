package environment

import (
	"errors"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/lineerr"
)

func parse(path string, data []byte) (*Spec, error) {
	r := newReader(path)
	return r.read(r.Body(data))
}

func TestRead(t *testing.T) {
	t.Parallel()
	s, err := parse("dir/environment.yaml", []byte(`name: train
python: 3.10
interpreter: /usr/bin/python3
folder: /opt/x/
torch: 2.15.0+cu132
deepspeed: dist/deepspeed-0.19.8-cp310-cp310-linux_x86_64.whl
companions: [/w/a-1-py3-none-any.whl]
requirements:
  - numpy>=2
  - "einops; python_version < '3.12'"
nodes:
  - {glibc: 2.35}
  - {machine: aarch64, glibc: 2.28}
`))
	if err != nil {
		t.Fatal(err)
	}
	if s.Name != "train" || s.Python != "3.10" || s.Folder != "/opt/x" || s.Torch != "2.15.0+cu132" || len(s.Wheels) != 2 || s.Wheels[0].Text != "dir/dist/deepspeed-0.19.8-cp310-cp310-linux_x86_64.whl" {
		t.Errorf("%+v", s)
	}
	if len(s.Wanted) != 2 || s.Wanted[1].Text != "einops; python_version < '3.12'" || len(s.Platforms) != 2 || s.Platforms[0] != (Platform{"aarch64", "2.28"}) {
		t.Errorf("%+v", s)
	}
}

// Every mistake is told with its place, all of one file at once.
func TestReadMistakes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"":                        {"1:1: empty environment file"},
		"name: a\n":               {`1:1: missing key "python"`},
		"- a\n":                   {"1:1: the environment file must be a mapping"},
		"name: a\npython: 3.11\n": {"1:1: empty environment file"},
		"nam: a\npython: 3\ntorch: [1]\nfolder: x y\n": {
			`1:1: unknown key "nam"`, "2:9: python must be a version X.Y", "3:8: torch must be a string", "4:9: folder must be an absolute path",
		},
		"name: ../x\npython: 3.11\ndeepspeed: deepspeed\ncompanions: []\nrequirements: [-r x, 'a @ file:///x', '']\nnodes: [{machine: mips, glibc: 2.28}, {}]\n": {
			"1:7: name must be letters", "3:12: deepspeed must be a path to a wheel", "4:13: companions is empty",
			`5:16: invalid requirement "-r x"`, "5:22: requirements with a URL are not supported", `invalid requirement ""`, "6:19: machine must be",
		},
		"name: a\npython: 3.11\nrequirements: [numpy, NumPy>1]\n":            {"3:23: numpy is listed twice"},
		"name: a\npython: 3.11\nrequirements: &x [numpy]\n":                  {"anchor"},
		"name: a\npython: 3.11\ntorch: 2.15.0\nnodes: [{machine: x86_64}]\n": {`missing key "glibc"`},
		"name: [\n": {"environment.yaml:"},
	} {
		_, err := parse("environment.yaml", []byte(text))
		var e *lineerr.Error
		if !errors.As(err, &e) {
			t.Errorf("%q: %v", text, err)
			continue
		}
		for _, w := range want {
			if !strings.Contains(e.Error(), w) {
				t.Errorf("%q: %q is not in\n%s", text, w, e)
			}
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("name: a\npython: 3.11\nrequirements: [numpy]\nnodes: [{glibc: 2.28}]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := parse("e.yaml", data)
		if err == nil && (s.Name == "" || s.Python == "") {
			t.Errorf("%+v", s)
		}
	})
}

func FuzzLock(f *testing.F) {
	f.Add([]byte(`{"format":1,"name":"a","python":"3.11","request":"","sets":[{"machine":"x86_64","glibc":"2.28","files":[]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := parseLock(data)
		if err == nil && len(l.Sets) == 0 {
			t.Errorf("%+v", l)
		}
	})
}

// The fewest kinds serve all nodes: the oldest glibc of each machine.
func TestKindsOf(t *testing.T) {
	t.Parallel()
	got := PlatformsOf([]node.Facts{
		{Platform: "linux_x86_64", Glibc: "2.36"},
		{Platform: "linux_aarch64", Glibc: "2.28"},
		{Platform: "linux_x86_64", Glibc: "2.9"},
		{Platform: "linux_x86_64", Glibc: "2.17"},
		{Platform: "linux_x86_64"},
		{Platform: "macosx_14_arm64", Glibc: "1"},
	})
	if len(got) != 2 || got[0] != (Platform{"aarch64", "2.28"}) || got[1] != (Platform{"x86_64", "2.9"}) {
		t.Errorf("%v", got)
	}
}

// Of several wheels the one is taken that pip takes.
func TestChoose(t *testing.T) {
	t.Parallel()
	k := Platform{"x86_64", "2.28"}
	for want, others := range map[string][]string{
		"a-1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl": {"a-1-py3-none-any.whl", "a-1-cp38-abi3-manylinux_2_28_x86_64.whl", "a-1-cp311-cp311-linux_x86_64.whl"},
		"a-1-cp311-cp311-manylinux_2_28_x86_64.whl":                      {"a-1-cp311-cp311-manylinux_2_17_x86_64.whl", "a-1-cp311-cp311-manylinux_2_34_x86_64.whl", "a-1-cp312-cp312-manylinux_2_28_x86_64.whl"},
		"a-1-cp39-abi3-manylinux1_x86_64.whl":                            {"a-1-cp38-abi3-manylinux1_x86_64.whl", "a-1-py3-none-manylinux2014_x86_64.whl", "a-1-cp39-abi3-manylinux2014_aarch64.whl"},
		"a-1-py3-none-manylinux2014_x86_64.whl":                          {"a-1-py3-none-any.whl", "a-1-py2-none-any.whl", "a-1-1-py3-none-any.whl"},
		"a-1-10-py3-none-any.whl":                                        {"a-1-9-py3-none-any.whl", "a-1-py3-none-any.whl", "nonsense.whl"},
	} {
		for _, order := range [][]string{append([]string{want}, others...), append(append([]string{}, others...), want)} {
			var all []File
			for _, name := range order {
				all = append(all, File{Name: "a", File: name})
			}
			if got, err := choose(all, "3.11", k); err != nil || got.File != want {
				t.Errorf("%v: %s, %v; want %s", order, got.File, err, want)
			}
		}
	}
	_, err := choose([]File{{File: "a-1-cp312-cp312-manylinux_2_28_x86_64.whl"}}, "3.11", k)
	if err == nil || err.Error() != "no wheel for Python 3.11, x86_64 with glibc 2.28; available: a-1-cp312-cp312-manylinux_2_28_x86_64.whl" {
		t.Error(err)
	}
}
