package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/pipeline"
)

func TestChoosePython(t *testing.T) {
	python := func(version string, parts ...string) pipeline.Interpreter {
		return pipeline.Interpreter{Version: version, Parts: parts}
	}
	whole := []string{"venv", "ensurepip", "pip", "Python.h"}
	for name, c := range map[string]struct {
		engine bool
		found  []pipeline.Interpreter
		tools  []string
		want   string
	}{
		"the base's, not the first":      {true, []pipeline.Interpreter{python("3.13.1", whole...), python("3.11.2", whole...)}, nil, "3.11"},
		"the machine's own":              {false, []pipeline.Interpreter{python("3.12.3", whole...)}, nil, "3.12"},
		"no header, in an engine":        {true, []pipeline.Interpreter{python("3.11.2", "venv", "ensurepip")}, nil, "3.11"},
		"no header, without":             {false, []pipeline.Interpreter{python("3.11.2", "venv", "ensurepip"), python("3.10.1", whole...)}, nil, "3.10"},
		"nothing makes environments":     {true, []pipeline.Interpreter{python("3.11.2", "venv")}, nil, ""},
		"pip in place of ensurepip":      {true, []pipeline.Interpreter{python("3.11.2", "venv", "pip")}, nil, "3.11"},
		"uv makes environments":          {false, []pipeline.Interpreter{python("3.11.2", "Python.h")}, []string{"uv"}, "3.11"},
		"too new and too old":            {true, []pipeline.Interpreter{python("3.14.0", whole...), python("3.9.2", whole...)}, nil, ""},
		"3.1 is not the beginning of it": {true, []pipeline.Interpreter{python("3.1.3", whole...)}, nil, ""},
	} {
		if got := choosePython(pipeline.BuildHost{Interpreters: c.found, Tools: c.tools}, c.engine); got != c.want {
			t.Errorf("%s: %q, not %q", name, got, c.want)
		}
	}
}

// If a machine lacks everything, the error names all missing programs at once, each with its
// package.
func TestEveryMissingProgramIsNamed(t *testing.T) {
	bin := t.TempDir()
	for _, tool := range []string{"sh", "uname", "getconf", "sed", "tr", "cut", "head", "readlink"} {
		path, err := exec.LookPath(tool)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(bin, tool)); err != nil {
			t.Fatal(err)
		}
	}
	_, err := checkPrograms(t.Context(), []string{"PATH=" + bin, "HOME=" + t.TempDir()}, false)
	if fault.ExitCode(err) != fault.Usage {
		t.Fatal(err)
	}
	said := err.Error() + "\n" + fault.Hint(err)
	for _, want := range []string{"gcc and g++", "Python", "strip", "tar", "python3-dev", "python3-venv", "libc6-dev", "binutils"} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not in\n%s", want, said)
		}
	}
}

// A user may have a checkout that belongs to another user.
func TestReadOnlyCheckout(t *testing.T) {
	checkout, cache := t.TempDir(), t.TempDir()
	if dir, err := chooseDir(checkout, cache); err != nil || dir != checkout {
		t.Errorf("%s, %v", dir, err)
	}
	if left, err := os.ReadDir(checkout); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
	if os.Geteuid() == 0 {
		checkout = "/sys" // root may write into folders of mode 0500
	} else if err := os.Chmod(checkout, 0o500); err != nil {
		t.Fatal(err)
	}
	if dir, err := chooseDir(checkout, cache); err != nil || dir != cache {
		t.Errorf("%s, %v", dir, err)
	}
}
