//go:build full && linux

package browser

import (
	"bytes"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/report/page"
	"github.com/dsbuild/dsbuild/internal/testkit/reporttest"
)

var (
	update   = flag.Bool("update", false, "take the picture of docs anew")
	pictures = flag.String("pictures", "", "also put pictures of all there is to see into this `folder`")
)

// thePicture is the one of docs/fleet.md.
const thePicture = "../../docs/fleet-report.png"

// writeReport returns the page of a report.
func writeReport(t *testing.T, r *report.Report) []byte {
	t.Helper()
	about := report.About{Command: "dsbuild deploy", Inventory: "inventory.yaml", By: "train@head", At: time.Date(2026, 11, 22, 9, 30, 0, 0, time.UTC)}
	var out bytes.Buffer
	if err := page.Write(&out, r, about); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// save writes a page to disk: the address to open it at.
func save(t *testing.T, text []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "fleet.html")
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
	return (&url.URL{Scheme: "file", Path: file}).String()
}

// names are the nodes, or rows of nodes, that the table shows.
func names(tab *Tab) []string {
	return Eval[[]string](tab, `[...document.querySelectorAll("#table tbody tr:not([hidden]) th")].map((th) => (th.querySelector("button") ?? th.firstChild).textContent.trim())`)
}

func text(tab *Tab, selector string) string {
	return Eval[string](tab, fmt.Sprintf("document.querySelector(%q).innerText", selector))
}

func want(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

var folded = []string{"gpu[01-04,06-08,12-14,16,19,21]", "gpu05", "gpu[09-11]", "gpu15", "gpu[17-18]", "gpu20", "gpu[22-24]"}

func TestFullFleetPage(t *testing.T) {
	tab := Open(t)
	address := save(t, writeReport(t, reporttest.Mixed()))
	tab.View(1440, 900, "screen", "light")
	tab.Go(address)
	t.Logf("result: browser: %s", tab.Version())
	want(t, "at first", names(tab), folded)

	t.Run("status", func(t *testing.T) {
		tab.Click(`[data-status="refused"]`)
		want(t, "refused", names(tab), []string{"gpu[17-18]", "gpu[22-24]"})
		tab.Click(`[data-status="failed"]`)
		want(t, "refused or failed", names(tab), []string{"gpu[17-18]", "gpu20", "gpu[22-24]"})
		if got := text(tab, "#shown"); got != "6 of 24" {
			t.Errorf("the count is %q, want 6 of 24", got)
		}
		tab.Click("#clear")
		tab.Do(chromedp.WaitNotPresent(chromedp.CSS(`#table tbody tr[hidden]`)))
		want(t, "cleared", names(tab), folded)
	})
	t.Run("sort", func(t *testing.T) {
		tab.Click(`#table thead th:first-child button`)
		tab.Click(`#table thead th:first-child button`) // downwards
		want(t, "by name, downwards", names(tab), []string{folded[5], folded[3], folded[1], folded[6], folded[4], folded[2], folded[0]})
		if got := Eval[string](tab, `document.querySelector("#table th").getAttribute("aria-sort")`); got != "descending" {
			t.Errorf("aria-sort is %q, want descending", got)
		}
		at := Eval[int](tab, `[...document.querySelectorAll("#table thead th")].findIndex((th) => th.textContent === "driver")`)
		tab.Click(fmt.Sprintf("#table thead th:nth-child(%d) button", at+1))
		if got := names(tab); got[0] != "gpu15" { // whose driver is not known
			t.Errorf("by driver the first is %q, want gpu15", got[0])
		}
		tab.Click("#clear")
		want(t, "cleared", names(tab), folded)
	})
	t.Run("search", func(t *testing.T) {
		tab.Click("#search")
		tab.Press("RTX gpu23")
		want(t, "found", names(tab), []string{"gpu[22-24]"})
		if got := text(tab, "#shown"); got != "1 of 24" {
			t.Errorf("the count is %q, want 1 of 24", got)
		}
		tab.Click("#clear")
		tab.Do(chromedp.WaitNotPresent(chromedp.CSS(`#table tbody tr[hidden]`)))
		want(t, "cleared", names(tab), folded)
	})
	want(t, "asked for", slices.Compact(tab.Requests()), []string{address})
}

// Each of two walls holds by itself: what is escaped, and the policy.
func TestFullFleetPageRunsNothingOfNodes(t *testing.T) {
	tab := Open(t)
	hostile := writeReport(t, reporttest.Hostile())
	open := regexpPolicy().ReplaceAll(hostile, nil)
	if len(open) == len(hostile) {
		t.Fatal("the page has no policy")
	}
	for name, text := range map[string][]byte{"as it is": hostile, "without its policy": open} {
		address, asked := serve(t, text)
		tab.Go(address)
		if got := Eval[string](tab, `String(window.hacked)`); got != "undefined" {
			t.Errorf("%s: what a node said ran: %s", name, got)
		}
		if got := Eval[int](tab, `document.querySelectorAll("img, svg[onload], script:not([id])").length`); got != 1 {
			t.Errorf("%s: %d elements that could run, want our script alone", name, got)
		}
		if got := Eval[string](tab, `document.querySelector("#table tbody th").textContent`); !strings.Contains(got, `<img src=x onerror="window.hacked='img'">`) {
			t.Errorf("%s: the name is not shown as it is: %q", name, got)
		}
		// An icon that no page names is asked for too, where no policy forbids it.
		got := slices.DeleteFunc(asked(), func(path string) bool { return name != "as it is" && path == "/favicon.ico" })
		want(t, name+": asked for", got, []string{"/fleet.html"})
	}
	holed := bytes.Replace(hostile, []byte("<main>"), []byte(`<main><script>window.hacked=1</script><script src="/x.js"></script><img src="/x.png" onerror="window.hacked=2"><p id=p></p>`), 1)
	address, asked := serve(t, holed)
	tab.Go(address)
	if got := Eval[string](tab, `try { document.getElementById("p").innerHTML = "<b>" } catch (e) { window.caught = e.name }; window.hacked + " " + window.caught`); got != "undefined TypeError" {
		t.Errorf("markup in the page, held by the policy alone: %q", got)
	}
	want(t, "markup in the page: asked for", asked(), []string{"/fleet.html"})
	address, asked = serve(t, regexpPolicy().ReplaceAll(holed, nil))
	tab.Go(address) // or the test would not see what the policy is for
	if got := Eval[string](tab, `String(window.hacked)`); got == "undefined" || !slices.Contains(asked(), "/x.png") {
		t.Errorf("without the policy: %s, asked for %q", got, asked())
	}
}

// serve gives a page to the browser, and says what it asked for.
func serve(t *testing.T, text []byte) (address string, asked func() []string) {
	t.Helper()
	var mu sync.Mutex
	var paths []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		paths = append(paths, r.URL.Path)
		if r.URL.Path != "/fleet.html" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html")
		w.Write(text)
	}))
	t.Cleanup(server.Close)
	return server.URL + "/fleet.html", func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(paths)
	}
}

func regexpPolicy() *regexp.Regexp {
	return regexp.MustCompile(`<meta http-equiv="Content-Security-Policy"[^>]*>`)
}

func TestFullFleetPageWithoutScript(t *testing.T) {
	tab := Open(t)
	tab.NoScript()
	tab.Go(save(t, writeReport(t, reporttest.Mixed())))
	want(t, "rows", names(tab), folded)
	if Eval[bool](tab, `document.querySelector(".tools").checkVisibility()`) {
		t.Error("tools that do nothing are shown")
	}
	if !strings.Contains(text(tab, "noscript"), "need JavaScript") {
		t.Error("nothing says what is missing")
	}
}

// two thousand nodes, all of them different or nearly all alike.
func TestFullFleetPageOfThousands(t *testing.T) {
	for name, fleet := range map[string]*report.Report{"alike": reporttest.Thousands(2000, false), "all different": reporttest.Thousands(2000, true)} {
		tab := Open(t)
		begin := time.Now()
		text := writeReport(t, fleet)
		written := time.Since(begin)
		if len(text) > 2_000_000 {
			t.Errorf("%s: the page has %d bytes", name, len(text))
		}
		begin = time.Now()
		tab.Go(save(t, text))
		opened := time.Since(begin)
		took := func(action string) float64 {
			return Eval[float64](tab, `(() => { const begin = performance.now(); `+action+`; document.body.offsetHeight; return performance.now() - begin })()`)
		}
		filter := took(`document.querySelector("[data-status=failed]").click()`)
		all := took(`document.querySelector("[data-status=failed]").click()`)
		sorted := took(`document.querySelector("#table th:nth-child(9) button").click()`)
		print := took(`dispatchEvent(new Event("beforeprint"))`)
		if got := Eval[int](tab, `document.querySelectorAll("#table tbody tr[hidden]").length`); got > 0 {
			t.Errorf("%s: %d rows are not printed", name, got)
		}
		t.Logf("result: a page of 2000 nodes, %s: %d KiB, written in %d ms, open after %d ms, filtered in %.0f, unfiltered in %.0f, sorted in %.0f, all rows laid out for printing in %.0f ms",
			name, len(text)>>10, written.Milliseconds(), opened.Milliseconds(), filter, all, sorted, print)
	}
}

// TestFullFleetPicture takes the picture of the documentation, and with
// -pictures those of everything else.
func TestFullFleetPicture(t *testing.T) {
	tab := Open(t)
	address := save(t, writeReport(t, reporttest.Mixed()))
	for _, scheme := range []string{"light", "dark"} {
		tab.View(1440, 1600, "screen", scheme)
		tab.Go(address)
		shot := tab.Picture()
		keep(t, scheme+".png", shot)
		if scheme == "light" {
			theOne(t, fewerColours(t, shot))
		}
		if *pictures == "" {
			continue
		}
		tab.View(390, 2600, "screen", scheme)
		keep(t, scheme+"-phone.png", tab.Picture())
	}
	if *pictures != "" {
		tab.View(1000, 1400, "print", "light")
		keep(t, "print.png", tab.Picture())
	}
}

// theOne compares the picture of the documentation with the page of today. Fonts
// differ between machines, so that only its size is held to it.
func theOne(t *testing.T, shot []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(thePicture, shot, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	old, err := os.ReadFile(thePicture)
	if err != nil {
		t.Fatal(err)
	}
	if len(old) > 200<<10 {
		t.Errorf("%s has %d bytes", thePicture, len(old))
	}
	is, err := png.DecodeConfig(bytes.NewReader(shot))
	if err != nil {
		t.Fatal(err)
	}
	was, err := png.DecodeConfig(bytes.NewReader(old))
	if err != nil || was.Width != is.Width || was.Height != is.Height {
		t.Errorf("%s: %v, %d × %d; the page is %d × %d: take it anew with -update", thePicture, err, was.Width, was.Height, is.Width, is.Height)
	}
}

// fewerColours makes a picture a third of its size: a page has few colours, and
// the edges of its letters need not have all of theirs.
func fewerColours(t *testing.T, shot []byte) []byte {
	t.Helper()
	picture, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		t.Fatal(err)
	}
	count := map[color.Color]int{}
	bounds := picture.Bounds()
	for y := range bounds.Dy() {
		for x := range bounds.Dx() {
			count[picture.At(x, y)]++
		}
	}
	most := slices.SortedFunc(maps.Keys(count), func(a, b color.Color) int { return count[b] - count[a] })
	few := image.NewPaletted(bounds, most[:min(len(most), 64)])
	draw.Draw(few, bounds, picture, bounds.Min, draw.Src)
	var out bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, few); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func keep(t *testing.T, name string, shot []byte) {
	t.Helper()
	if *pictures == "" {
		return
	}
	if err := os.WriteFile(filepath.Join(*pictures, name), shot, 0o644); err != nil {
		t.Fatal(err)
	}
}
