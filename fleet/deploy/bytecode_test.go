package deploy_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/wheel"
)

// byteCode is what the strip step makes, with the number of this Python: a module
// that says where it comes from, and one outside of the package.
func byteCode(t *testing.T) (wheel.ByteCode, []byte) {
	t.Helper()
	program := `import hashlib, importlib.util, json, lzma, marshal, sys
modules = ["deepspeed/origin.py", "deepspeed/../evil.py"]
code = [marshal.dumps(compile("x = 'byte code'", m, "exec")) for m in modules]
text = json.dumps([[m, len(c)] for m, c in zip(modules, code)]).encode() + b"\n" + b"".join(code)
magic = int.from_bytes(importlib.util.MAGIC_NUMBER[:2], "little")
print(json.dumps({"magic": magic, "sha256": hashlib.sha256(text).hexdigest()}))
sys.stdout.flush()
sys.stdout.buffer.write(lzma.compress(text))`
	out, err := exec.Command("python3", "-c", program).Output()
	if err != nil {
		t.Fatal(err)
	}
	said, packed, _ := strings.Cut(string(out), "\n")
	var b wheel.ByteCode
	if err := json.Unmarshal([]byte(said), &b); err != nil {
		t.Fatal(err)
	}
	return b, []byte(packed)
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

// The byte code beside a wheel is used as if it had been compiled on the node:
// only by a Python that has such byte code, and only if it is that of the wheel.
func TestByteCodeBesideTheWheel(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	other := sha256.Sum256([]byte("another"))
	for name, c := range map[string]struct {
		change func(b *wheel.ByteCode, file string)
		want   string
	}{
		"its own":         {func(*wheel.ByteCode, string) {}, "byte code"},
		"another Python":  {func(b *wheel.ByteCode, _ string) { b.Magic++ }, "source"},
		"another wheel's": {func(b *wheel.ByteCode, _ string) { b.SHA256 = hex.EncodeToString(other[:]) }, "source"},
		"cut off": {func(_ *wheel.ByteCode, file string) {
			if err := os.Truncate(file, 60); err != nil {
				t.Error(err)
			}
		}, "source"},
		"not there": {func(_ *wheel.ByteCode, file string) {
			if err := os.Remove(file); err != nil {
				t.Error(err)
			}
		}, "source"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, packed := byteCode(t)
			file := filepath.Join(t.TempDir(), "code")
			if err := os.WriteFile(file, packed, 0o600); err != nil {
				t.Fatal(err)
			}
			c.change(&b, file)
			path := makeWheel(t, t.TempDir(), wheelOptions{code: &b, files: map[string]string{"deepspeed/origin.py": "x = 'source'\n"}})
			if exists(file)() {
				if err := os.Rename(file, path+wheel.ByteCodeSuffix); err != nil {
					t.Fatal(err)
				}
			}
			e := newEnvironment(t, "2.15.0")
			h, s := host(t, "gpu1", e, sshtest.Options{})
			if r := run(t, context.Background(), options(t, load(t, path), []*sshtest.Server{s}, h)); r.Err() != nil {
				t.Fatal(r.Err())
			}
			if got := e.origin(t); got != c.want {
				t.Errorf("imported %q, want %q", got, c.want)
			}
			if exists(filepath.Join(e.site, "__pycache__"))() || exists(filepath.Join(e.site, "evil.py"))() {
				t.Error("left the package")
			}
			cached, err := filepath.Glob(filepath.Join(e.site, "deepspeed", "__pycache__", "*.pyc"))
			if err != nil || len(cached) == 0 {
				t.Errorf("byte code is there: %q, %v", cached, err)
			}
			e.write(t, "deepspeed/origin.py", "x = 'edited by hand'\n")
			if got := e.origin(t); got != "edited by hand" {
				t.Errorf("an edited module is not compiled anew: %q", got)
			}
		})
	}
}

// withCode makes a wheel with byte code beside it.
func withCode(t *testing.T, opt wheelOptions, version string) []wheel.Loaded {
	t.Helper()
	b, packed := byteCode(t)
	opt.version, opt.code, opt.files = version, &b, map[string]string{"deepspeed/origin.py": "x = 'source'\n"}
	path := makeWheel(t, t.TempDir(), opt)
	if err := os.WriteFile(path+wheel.ByteCodeSuffix, packed, 0o600); err != nil {
		t.Fatal(err)
	}
	return load(t, path)
}

// bytesWithCode is the size of a wheel and of the byte code beside it.
func bytesWithCode(t *testing.T, w wheel.Loaded) int64 {
	t.Helper()
	_, code, err := wheel.HashFile(w.Path + wheel.ByteCodeSuffix)
	if err != nil {
		t.Fatal(err)
	}
	return w.Manifest.Size + code
}
