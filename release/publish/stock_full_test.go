//go:build full

package publish_test

import (
	"bytes"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/release/publish"
)

// Stock pip and uv install what was published, and stock twine sends the same form to the same kind of
// index.
func TestFullPublishStockTools(t *testing.T) {
	tools := filepath.Join(t.TempDir(), "tools")
	command(t, nil, "python3", "-m", "venv", tools)
	bin := filepath.Join(tools, "bin") + "/"
	command(t, nil, bin+"pip", "install", "-q", "uv", "twine")
	wheels, _ := built(t, "0.19.8")

	uploaded := uploadPlace(t)
	if _, err := publish.Run(t.Context(), uploaded.options(t, wheels)); err != nil {
		t.Fatal(err)
	}
	simple := strings.Replace(uploaded.check, "http://", "http://"+indexUser+":"+indexPassword+"@", 1)
	install(t, bin, "--index-url", simple)

	twice := uploadPlace(t)
	theirs := formsAt(t, twice)
	env := []string{"TWINE_USERNAME=" + indexUser, "TWINE_PASSWORD=" + indexPassword}
	command(t, env, bin+"twine", "upload", "--non-interactive", "--repository-url", twice.to, wheels[0])
	same(t, twice.files(t), uploaded.files(t))
	ourPlace := uploadPlace(t)
	ours := formsAt(t, ourPlace)
	if _, err := publish.Run(t.Context(), ourPlace.options(t, wheels)); err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{
		":action", "protocol_version", "filetype", "pyversion", "name", "version", "metadata_version", "requires_dist", "sha256_digest", "description",
	} {
		if strings.Join(theirs[field], "|") != strings.Join(ours[field], "|") {
			t.Errorf("%s: twine sends %q, dsbuild %q", field, theirs[field], ours[field])
		}
	}
}

// formsAt notes the fields of the uploads to an index.
func formsAt(t *testing.T, p place) url.Values {
	t.Helper()
	fields := url.Values{}
	p.wrap(func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			text, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			r.Body = io.NopCloser(bytes.NewReader(text))
			h.ServeHTTP(w, r)
			r.Body = io.NopCloser(bytes.NewReader(text))
			if err := r.ParseMultipartForm(64 << 20); err == nil && r.MultipartForm != nil {
				maps.Copy(fields, r.MultipartForm.Value)
			}
		})
	})
	return fields
}

// install installs DeepSpeed from an index by pip and by uv, each into an environment of its own.
func install(t *testing.T, bin string, from ...string) {
	t.Helper()
	for _, tool := range [][]string{{bin + "pip", "install", "--no-deps", "--target"}, {bin + "uv", "pip", "install", "--python", bin + "python", "--no-cache", "--no-deps", "--target"}} {
		dir := t.TempDir()
		command(t, nil, tool[0], append(append(append([]string{}, tool[1:]...), dir), append(from, "deepspeed")...)...)
		if text, err := os.ReadFile(filepath.Join(dir, "deepspeed", "version.py")); err != nil || !strings.Contains(string(text), "0.19.8") {
			t.Errorf("%s has installed %q, %v", filepath.Base(tool[0]), text, err)
		}
	}
}

// command runs a program.
func command(t *testing.T, env []string, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
}
