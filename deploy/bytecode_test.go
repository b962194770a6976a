package deploy_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/remote/sshtest"
)

// byteCode is an archive as wheels bring it, for Python's number plus off: a
// module that says where it comes from, and one that the wheel does not have.
func byteCode(t *testing.T, off string) (name, packed string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "code.zip")
	program := `import importlib.util, marshal, sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w") as z:
    for name in ("deepspeed/origin.py", "deepspeed/../../evil.py", "deepspeed/none.py"):
        z.writestr(name, marshal.dumps(compile("x = 'byte code'", name, "exec")))
print("deepspeed-0.19.8%2Btorch2.15.cu132.sm80.v2.dist-info/bytecode-" + str(int.from_bytes(importlib.util.MAGIC_NUMBER[:2], "little") + int(sys.argv[2])) + ".zip")`
	out, err := exec.Command("python3", "-c", program, file, off).Output()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(strings.TrimSpace(string(out)), "%2B", "+"), string(b)
}

func (e environment) origin(t *testing.T) string {
	t.Helper()
	cmd := exec.Command(e.python, "-B", "-W", "error", "-c", "import deepspeed.origin; print(deepspeed.origin.x)")
	cmd.Dir = e.dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// The byte code that a wheel brings is used as if it had been compiled on the
// node, and only by a Python that has such byte code.
func TestByteCodeOfTheWheel(t *testing.T) {
	t.Parallel()
	for off, want := range map[string]string{"0": "byte code", "1": "source"} {
		name, packed := byteCode(t, off)
		files := map[string]string{"deepspeed/origin.py": "x = 'source'\n", name: packed}
		wheels := load(t, makeWheel(t, t.TempDir(), wheelOptions{files: files}))
		e := newEnvironment(t, "2.15.0")
		h, s := host(t, "gpu1", e, sshtest.Options{})
		if r := run(t, context.Background(), options(t, wheels, []*sshtest.Server{s}, h)); r.Err() != nil {
			t.Fatal(r.Err())
		}
		if got := e.origin(t); got != want {
			t.Errorf("byte code of number +%s: imported %q, want %q", off, got, want)
		}
		if left, _ := filepath.Glob(filepath.Join(e.site, "evil*")); len(left) > 0 || exists(filepath.Join(e.site, "..", "evil.py"))() {
			t.Errorf("left the package: %q", left)
		}
		cached, err := filepath.Glob(filepath.Join(e.site, "deepspeed", "__pycache__", "*.pyc"))
		if err != nil || len(cached) == 0 {
			t.Errorf("number +%s: byte code is there: %q, %v", off, cached, err)
		}
		e.write(t, "deepspeed/origin.py", "x = 'edited by hand'\n")
		if got := e.origin(t); got != "edited by hand" {
			t.Errorf("an edited module is not compiled anew: %q", got)
		}
	}
}
