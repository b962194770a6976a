package daggerbuilder

import (
	"bytes"
	"context"
	"crypto/rand"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"dagger.io/dagger"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
)

// siteOf is a site whose index has a password.
func siteOf(t *testing.T, password string) pipeline.Network {
	t.Helper()
	network, err := pipeline.NewNetwork(pipeline.NetworkOptions{IndexURL: "https://ci:" + password + "@index.example.org/simple"}, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	return network
}

// attempt runs a plan with a site and returns all that was said, and the folder
// of what was written.
func attempt(t *testing.T, b *Builder, p *pipeline.Plan, network pipeline.Network) (said, dir string, err error) {
	t.Helper()
	var out bytes.Buffer
	dir = t.TempDir()
	console := ui.New(&out, ui.Options{})
	_, err = pipeline.Runner{
		Store: pipeline.Store{Dir: filepath.Join(dir, "store"), Keep: 9}, Dir: filepath.Join(dir, "out"), Logs: filepath.Join(dir, "logs"),
		Report: console, Network: network,
		Builder: func(context.Context) (pipeline.Builder, error) { return b.WithNetwork(network), nil },
	}.Run(t.Context(), p)
	console.Close()
	return out.String(), dir, err
}

// clean fails where a secret is in a text, or in a file below dir.
func clean(t *testing.T, secret, where, text, dir string) {
	t.Helper()
	if strings.Contains(text, secret) {
		t.Errorf("the secret is in %s:\n%s", where, text)
	}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte(secret)) {
			t.Errorf("the secret is in %s", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The image and the steps are told the site; what they print of it is not kept,
// the wheel and what lies beside it do not know it, nor does any layer. Another
// site finds all of it cached.
func TestRealSiteIsASecret(t *testing.T) {
	b, tar := connect(t)
	if tar == "" {
		t.Skip("needs the base of dsbuild's own engine")
	}
	const secret, other = "geheim-4711", "anders-0815"
	show := `echo "index $PIP_INDEX_URL"; test -n "$UV_DEFAULT_INDEX"; printf %s "${PIP_INDEX_URL#*@}" >`
	now := "; : " + rand.Text() // so that it runs, whatever ran before
	p := tiny(t, "1", tar, show+"/host.image"+now, show+`"$DSBUILD_OUT/host"`+now)
	said, dir, err := attempt(t, b, p, siteOf(t, secret))
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	logs, err := filepath.Glob(filepath.Join(dir, "logs", "*.log"))
	if err != nil || len(logs) != 1 {
		t.Fatal(logs, err)
	}
	log, err := os.ReadFile(logs[0])
	if err != nil || strings.Count(string(log), "index https://***@index.example.org/simple") != 2 {
		t.Errorf("the log should hold what image and step printed, without the password: %v\n%s", err, log)
	}
	clean(t, secret, "what was said", said, dir)
	clean(t, secret, "the image", "", layersOf(t, b.WithNetwork(siteOf(t, secret)), p))

	said, dir, err = attempt(t, b, p, siteOf(t, other))
	if err != nil || !strings.Contains(said, "runtime: ") || strings.Count(said, "cached") < 5 {
		t.Errorf("another site builds anew: %v\n%s", err, said)
	}
	clean(t, other, "what was said", said, dir)
}

// layersOf exports the toolchain image, with layers as they are, into a folder.
// What the site is may stand in it where the build wrote it: so it can be read.
func layersOf(t *testing.T, b *Builder, p *pipeline.Plan) string {
	t.Helper()
	w, err := b.Open(t.Context(), p, pipeline.Work{Log: t.Output(), Report: &record{}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "image.tar")
	plain := dagger.ContainerAsTarballOpts{ForcedCompression: dagger.ImageLayerCompressionUncompressed}
	if _, err := w.(*run).images[pipeline.Toolchain].AsTarball(plain).Export(t.Context(), file); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil || !bytes.Contains(data, []byte("index.example.org/simple")) {
		t.Fatalf("the layers cannot be read: %v", err)
	}
	return dir
}

// Where a step fails, its output is in the error and in the log.
func TestRealSiteIsNotInErrors(t *testing.T) {
	b, tar := connect(t)
	if tar == "" {
		t.Skip("needs the base of dsbuild's own engine")
	}
	const secret = "geheim-4711"
	fail := `echo "error: no answer from $PIP_INDEX_URL, password $(echo "$PIP_INDEX_URL" | sed 's/.*ci:\(.*\)@.*/\1/')" >&2; exit 3`
	for name, p := range map[string]*pipeline.Plan{
		"image": tiny(t, "2", tar, fail, "true"), "step": tiny(t, "3", tar, "true", fail),
	} {
		said, dir, err := attempt(t, b, p, siteOf(t, secret))
		if err == nil || !strings.Contains(err.Error(), "no answer from https://***@index.example.org/simple, password ***") {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil {
			clean(t, secret, "the error", err.Error()+fault.Hint(err)+said, dir)
		}
	}
}
