//go:build full && linux

package browser

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/release/index"
	"github.com/dsbuild/dsbuild/wheel"
)

// Where nobody has said at which address the page will be, it finds out by itself, from
// a server and from files; it asks for nothing, and its own policy lets it.
func TestFullNightlyIndexPage(t *testing.T) {
	ops := []wheeltest.Op{{Name: "cpu_adam", Dir: "adam"}, {Name: "fused_adam", Dir: "adam", SASS: []string{"8.0"}}}
	file, manifest, _ := wheeltest.Built(t, t.TempDir(), wheeltest.Options{Ops: ops})
	text, err := json.Marshal(manifest)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file+wheel.ManifestSuffix, text, 0o644); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if _, err := index.Write(t.Context(), index.Options{Dir: dir, Wheels: []string{file}}); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(server.Close)
	tab := Open(t)
	var opened []string
	for _, base := range []string{server.URL + "/", "file://" + dir + "/"} {
		address := base + "index.html"
		if strings.HasPrefix(base, "http") {
			address = base
		}
		tab.Go(address)
		lines := Eval[[]string](tab, `[...document.querySelectorAll(".command code")].map((c) => c.textContent)`)
		if want := "pip install --no-deps --index-url " + base + "torch2.15-cu132-sm80-v3/ deepspeed"; !slices.Contains(lines, want) {
			t.Errorf("%s: the lines lack %q: %q", base, want, lines)
		}
		if style := Eval[string](tab, `getComputedStyle(document.body).maxWidth`); style == "none" {
			t.Errorf("%s: the page has no style", base)
		}
		opened = append(opened, address)
		if asked := slices.Compact(tab.Requests()); !slices.Equal(asked, opened) {
			t.Errorf("%s: asked for %q", base, asked)
		}
	}
}
