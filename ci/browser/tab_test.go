//go:build full && linux

// Package browser tests dsbuild's pages in a real Chromium that cannot resolve names: it opens
// files of a test and pages served on 127.0.0.1.
package browser

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"github.com/dsbuild/dsbuild/internal/testkit/debian"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
)

// errNone means that there is no Chromium.
var errNone = errors.New("no Chromium on this machine: install chromium")

// patience is the time limit of each action in a tab.
const patience = 3 * time.Minute

// Tab is a tab of its own browser, with an empty profile. An error in it fails the test.
type Tab struct {
	tb  testing.TB
	ctx context.Context

	mu       sync.Mutex
	requests []string
}

// Open opens a tab until the test ends. Without Chromium it skips the test, but fails it if the
// variable CI is true.
func Open(tb testing.TB) *Tab {
	tb.Helper()
	path, err := findBrowser(tb.Context())
	if errors.Is(err, errNone) {
		needs.Missing(tb, "%v", err)
	}
	if err != nil {
		tb.Fatal(err)
	}
	ctx, stop := chromedp.NewExecAllocator(tb.Context(), append(
		chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path),
		chromedp.UserDataDir(tb.TempDir()),
		chromedp.NoSandbox, // root has no sandbox
		chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
		chromedp.Flag("font-render-hinting", "none"), // the same pictures everywhere
	)...)
	tb.Cleanup(stop)
	ctx, end := chromedp.NewContext(ctx)
	tb.Cleanup(end)
	t := &Tab{tb: tb, ctx: ctx}
	if err := chromedp.Listen(ctx, t.recordRequest); err != nil {
		tb.Fatalf("starting %s: %v", path, err)
	}
	if _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); err != nil {
		tb.Fatal(err)
	}
	return t
}

// recordRequest records the addresses that the tab loads, from the network or a disk.
func (t *Tab) recordRequest(event any) {
	if e, ok := event.(*network.EventRequestWillBeSent); ok {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.requests = append(t.requests, e.Request.URL)
	}
}

// Requests returns the addresses that the tab has loaded.
func (t *Tab) Requests() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.requests)
}

// Go opens an address and waits until it is loaded.
func (t *Tab) Go(url string) {
	t.tb.Helper()
	t.Do(chromedp.Navigate(url))
}

// Do performs actions in the tab, one after the other.
func (t *Tab) Do(actions ...chromedp.Action[chromedp.Void]) {
	t.tb.Helper()
	ctx, cancel := context.WithTimeout(t.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		t.tb.Fatal(err)
	}
}

// Click clicks on the element of a CSS selector, as a mouse does.
func (t *Tab) Click(selector string) {
	t.tb.Helper()
	t.Do(chromedp.Click(chromedp.CSS(selector)))
}

// Press presses keys, one after the other.
func (t *Tab) Press(keys string) {
	t.tb.Helper()
	t.Do(chromedp.KeyEvent(keys))
}

// View sets the size of the window, and the page's medium and colour scheme: "light" or "dark".
func (t *Tab) View(width, height int64, medium, scheme string) {
	t.tb.Helper()
	t.Do(chromedp.EmulateViewport(width, height))
	media := emulation.SetEmulatedMediaParams{Media: medium, Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}
	if _, err := chromedp.Call(t.ctx, emulation.SetEmulatedMedia, media); err != nil {
		t.tb.Fatal(err)
	}
}

// NoScript prevents pages from running scripts.
func (t *Tab) NoScript() {
	t.tb.Helper()
	if _, err := chromedp.Call(t.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}); err != nil {
		t.tb.Fatal(err)
	}
}

// Picture returns the contents of the window as PNG.
func (t *Tab) Picture() []byte {
	t.tb.Helper()
	return decodeResult(t, chromedp.CaptureScreenshot())
}

// Eval returns the value of an expression of JavaScript.
func Eval[T any](t *Tab, expression string) T {
	t.tb.Helper()
	return decodeResult(t, chromedp.Evaluate[T](expression))
}

func decodeResult[T any](t *Tab, action chromedp.Action[T]) T {
	t.tb.Helper()
	ctx, cancel := context.WithTimeout(t.ctx, patience)
	defer cancel()
	value, err := chromedp.Run(ctx, action)
	if err != nil {
		t.tb.Fatal(err)
	}
	return value
}

// Version is the name and version of the browser.
func (t *Tab) Version() string {
	t.tb.Helper()
	agent := Eval[string](t, "navigator.userAgent")
	_, version, _ := strings.Cut(agent, "Chrome/")
	version, _, _ = strings.Cut(version, " ")
	return "Chromium " + version
}

// findBrowser looks for Chromium, and installs it if it may.
func findBrowser(ctx context.Context) (string, error) {
	have := func() bool { return findInstalled() != "" }
	if !have() && os.Geteuid() == 0 {
		if err := debian.Ensure(ctx, have, "chromium"); err != nil {
			return "", fmt.Errorf("%w; installing it failed: %w", errNone, err)
		}
	}
	if !have() {
		return "", errNone
	}
	return findInstalled(), nil
}

func findInstalled() string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}
