package main

import (
	"encoding/json"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
)

func TestSiteConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "engine.json")
	none, err := readSite(file)
	if err != nil {
		t.Fatal(err)
	}
	text, err := engineConfig(none)
	if err != nil || strings.Contains(text, "registries") {
		t.Errorf("without a site: %s, %v", text, err)
	}
	put(t, file, `{"registries": {"docker.io": {"mirrors": ["mirror.example.org/hub"]}, "mirror.example.org": {"http": true}}}`)
	site, err := readSite(file)
	if err != nil {
		t.Fatal(err)
	}
	text, err = engineConfig(site)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"docker.io":          map[string]any{"mirrors": []any{"mirror.example.org/hub"}},
		"mirror.example.org": map[string]any{"http": true},
	}
	if !reflect.DeepEqual(got["registries"], want) || got["gc"] == nil || got["logLevel"] != "info" {
		t.Errorf("engine.json: %s", text)
	}
	for _, bad := range []string{`{"gc": {}}`, `{"registries": {"a": {"ca": ["/a.crt"]}}}`, `{`} {
		put(t, file, bad)
		if _, err := readSite(file); err == nil || !strings.Contains(err.Error(), file) || fault.Hint(err) == "" {
			t.Errorf("%s: %v, hint %q", bad, err, fault.Hint(err))
		}
	}
}

func TestProxiesInBothCases(t *testing.T) {
	got := proxyVariables([]string{"HTTP_PROXY=http://upper", "https_proxy=http://lower", "HTTPS_PROXY=http://other", "no_proxy=", "FTP_PROXYX=x"})
	want := []string{"http_proxy=http://upper", "HTTP_PROXY=http://upper", "https_proxy=http://lower", "HTTPS_PROXY=http://lower"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%q", got)
	}
}

func TestProxiesOfApt(t *testing.T) {
	ask := func(key string) string {
		return map[string]string{"Acquire::http::Proxy": "http://apt:1", "Acquire::https::Proxy": "DIRECT"}[key]
	}
	if got := aptProxies(nil, ask); !reflect.DeepEqual(got, []string{"http_proxy=http://apt:1", "HTTP_PROXY=http://apt:1"}) {
		t.Errorf("%q", got)
	}
	if got := aptProxies([]string{"http_proxy=http://env:2"}, ask); got[0] != "http_proxy=http://env:2" || len(got) != 2 {
		t.Errorf("the environment goes first: %q", got)
	}
}

func TestProxyOnLoopback(t *testing.T) {
	for kv, want := range map[string]string{
		"http_proxy=http://me:secret@127.0.0.1:3128/": "http_proxy (127.0.0.1:3128)",
		"HTTPS_PROXY=localhost:8080":                  "https_proxy (localhost:8080)",
		"all_proxy=socks5://[::1]:1080":               "all_proxy ([::1]:1080)",
		"http_proxy=http://proxy.example.org:3128":    "",
		"no_proxy=localhost,127.0.0.1":                "",
		"PATH=/bin":                                   "",
	} {
		if got := loopbackProxy([]string{kv}); got != want {
			t.Errorf("%s: %q, want %q", kv, got, want)
		}
	}
}
