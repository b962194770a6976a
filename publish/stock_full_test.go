//go:build full

package publish_test

import (
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/index"
	"github.com/dsbuild/dsbuild/publish"
)

// Stock pip and uv install what was published, and the index of these tests takes stock twine's
// uploads as it takes ours.
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
	simple := strings.Replace(uploaded.check, "http://", "http://ci:index-password@", 1)
	install(t, bin, "--index-url", simple)

	www := t.TempDir()
	for name, data := range indexedBucket(t, wheels) {
		file := filepath.Join(www, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	install(t, bin, "--index-url", "file://"+www+"/torch2.15-cu132-v3/")

	twice := newUploads()
	address, _ := serve(t, twice)
	env := []string{"TWINE_USERNAME=" + twice.user, "TWINE_PASSWORD=" + twice.password}
	command(t, env, bin+"twine", "upload", "--non-interactive", "--repository-url", address+"/legacy/", wheels[0])
	same(t, twice.all(), uploaded.files(t))
	theirs, ours := twice.forms[filepath.Base(wheels[0])], formOf(t, wheels)
	for _, field := range []string{":action", "protocol_version", "filetype", "pyversion", "name", "version", "metadata_version", "requires_dist", "sha256_digest", "description"} {
		if strings.Join(theirs[field], "|") != strings.Join(ours[field], "|") {
			t.Errorf("%s: %q of twine's, %q of ours", field, theirs[field], ours[field])
		}
	}
}

// formOf returns the fields that publish sends for a wheel.
func formOf(t *testing.T, wheels []string) map[string][]string {
	t.Helper()
	s := newUploads()
	address, _ := serve(t, s)
	p := place{to: address + "/legacy/", env: map[string]string{"TWINE_USERNAME": s.user, "TWINE_PASSWORD": s.password}}
	if _, err := publish.Run(t.Context(), p.options(t, wheels)); err != nil {
		t.Fatal(err)
	}
	return s.forms[filepath.Base(wheels[0])]
}

// indexedBucket returns the objects of a bucket with these wheels and an index.
func indexedBucket(t *testing.T, wheels []string) map[string][]byte {
	t.Helper()
	s := newStore(t)
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	p := place{to: "s3://wheels", env: map[string]string{"AWS_ACCESS_KEY_ID": accessKey, "AWS_SECRET_ACCESS_KEY": s.secret, "AWS_ENDPOINT_URL": server.URL, "AWS_REGION": "eu-west-1"}}
	opt := p.options(t, wheels)
	if _, err := publish.Run(t.Context(), opt); err != nil {
		t.Fatal(err)
	}
	objects, err := publish.Objects(opt)
	if err == nil {
		_, err = index.WriteObjects(t.Context(), objects, index.Options{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return s.files("")
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
