//go:build full && linux

package index_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/ci/browser"
	"github.com/dsbuild/dsbuild/index"
)

// Where nobody has said at which address the page will be, it finds out by itself, from
// a server and from files; it asks for nothing, and its own policy lets it.
func TestFullNightIndexPage(t *testing.T) {
	dir := t.TempDir()
	write(t, index.Options{Dir: dir, Wheels: some(t)})
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(server.Close)
	tab := browser.Open(t)
	var opened []string
	for _, base := range []string{server.URL + "/", "file://" + dir + "/"} {
		address := base + "index.html"
		if strings.HasPrefix(base, "http") {
			address = base
		}
		tab.Go(address)
		lines := browser.Eval[[]string](tab, `[...document.querySelectorAll(".line code")].map((c) => c.textContent)`)
		if want := "pip install --no-deps --index-url " + base + sm80 + "/ deepspeed"; !slices.Contains(lines, want) {
			t.Errorf("%s: the lines lack %q: %q", base, want, lines)
		}
		if style := browser.Eval[string](tab, `getComputedStyle(document.body).maxWidth`); style == "none" {
			t.Errorf("%s: the page has no style", base)
		}
		opened = append(opened, address)
		if asked := slices.Compact(tab.Requests()); !slices.Equal(asked, opened) {
			t.Errorf("%s: asked for %q", base, asked)
		}
	}
}
