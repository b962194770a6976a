package pipeline

import (
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// site reads the settings of an environment.
func site(t *testing.T, o NetworkOptions, env map[string]string) Network {
	t.Helper()
	s, err := NewNetwork(o, func(name string) string { return env[name] })
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// told runs a shell line with the settings as a script of an image has them.
func told(t *testing.T, s Network, line string, env ...string) string {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "site")
	if err := os.WriteFile(file, []byte(s.Script()), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-euc", ". ../dockerfiles/site.sh; "+line)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "DSBUILD_SITE=" + file, "TMPDIR=" + dir}, env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return string(out)
}

func TestSiteIsTold(t *testing.T) {
	s := site(t, NetworkOptions{IndexURL: "https://ci:it's@index.example.org/simple"}, map[string]string{
		"PIP_INDEX_URL": "https://not.this.one/", "UV_INDEX": "extra=https://extra.example.org/simple https://more.example.org/",
		"https_proxy": "http://proxy:3128", "HTTPS_PROXY": "http://other:3128", "NO_PROXY": "localhost",
		"CCACHE_REMOTE_STORAGE": "http://cache/ccache|read-only", "PIP_FIND_LINKS": "/only/here", "HOME": "/home/me",
	})
	got := told(t, s, `env | grep -E 'INDEX|PROXY|proxy|CCACHE|FIND|HOME' | sort`)
	want := `CCACHE_REMOTE_STORAGE=http://cache/ccache|read-only
DSBUILD_TORCH_INDEX=https://download.pytorch.org/whl
HTTPS_PROXY=http://proxy:3128
NO_PROXY=localhost
PIP_EXTRA_INDEX_URL=https://extra.example.org/simple https://more.example.org/
PIP_INDEX_URL=https://ci:it's@index.example.org/simple
UV_DEFAULT_INDEX=https://ci:it's@index.example.org/simple
UV_INDEX=https://extra.example.org/simple https://more.example.org/
https_proxy=http://proxy:3128
no_proxy=localhost
`
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// Certificates of the site stand beside those there are, and are gone with the
// script.
func TestSiteCertificates(t *testing.T) {
	dir := t.TempDir()
	own, system := filepath.Join(dir, "own.pem"), filepath.Join(dir, "system.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("site")})
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("key")})
	if err := errors.Join(os.WriteFile(own, slices.Concat([]byte("it's ours\n"), key, block), 0o600), os.WriteFile(system, []byte("system's\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	got := told(t, site(t, NetworkOptions{CA: own}, nil), `cat "$PIP_CERT"; echo "$SSL_CERT_FILE $REQUESTS_CA_BUNDLE $CURL_CA_BUNDLE"`, "SSL_CERT_FILE="+system)
	want := "system's\n" + string(block)
	rest, found := strings.CutPrefix(got, want)
	if !found {
		t.Fatalf("%s\nwant\n%s", got, want)
	}
	files := strings.Fields(rest)
	if len(files) != 3 || files[0] != files[1] || files[1] != files[2] {
		t.Fatal(files)
	}
	if _, err := os.Stat(files[0]); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", files[0], err)
	}
}

// uv trusts the certificates of the system, unless the user's environment names others.
func TestProgramsTrustTheSystem(t *testing.T) {
	const bundle = "/etc/ssl/certs/ca-certificates.crt"
	if _, err := os.Stat(bundle); err != nil {
		t.Skipf("this machine has no certificates: %v", err)
	}
	for environ, want := range map[string]bool{"PATH=/bin": true, "SSL_CERT_DIR=/own": false} {
		got, err := site(t, NetworkOptions{}, nil).Programs([]string{environ}, t.TempDir())
		if err != nil || slices.Contains(got, "SSL_CERT_FILE="+bundle) != want {
			t.Errorf("with %s: %q, %v, want that uv gets %s: %t", environ, got, err, bundle, want)
		}
	}
}

// Sources of apt are read with the mirror before them, from a copy.
func TestSiteMirror(t *testing.T) {
	text, err := os.ReadFile("../dockerfiles/install.sh")
	if err != nil {
		t.Fatal(err)
	}
	_, line, found := strings.Cut(string(text), "[ ! -f \"$list\" ] || ")
	if !found {
		t.Fatal("install.sh rewrites no sources")
	}
	line, _, _ = strings.Cut(line, " >")
	list := filepath.Join(t.TempDir(), "a.list")
	lines := "# http://deb.debian.org/\ndeb [trusted=yes] http://deb.debian.org/debian bookworm main\ndeb https://security.debian.org/debian-security x main\n" +
		"Types: deb\nURIs: http://archive.ubuntu.com/ubuntu https://b.org/ubuntu\n"
	if err := os.WriteFile(list, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	s := site(t, NetworkOptions{}, map[string]string{aptMirror: "https://u:p@mirror.example.org/apt/"})
	const m = "https://u:p@mirror.example.org/apt/"
	want := "# http://deb.debian.org/\ndeb [trusted=yes] " + m + "debian bookworm main\ndeb " + m + "debian-security x main\nTypes: deb\nURIs: " + m + "ubuntu " + m + "ubuntu\n"
	if got := told(t, s, line, "list="+list); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// torch comes from the index that has it: the package index, or one of torch's own,
// ahead of the others. uv gets the line of the plan's packages, with the digest.
func TestSiteTorchIndex(t *testing.T) {
	dir := t.TempDir()
	files := map[string]string{
		"uv":           "#!/bin/sh\ncase $1 in pip) echo \"$* $(cat), beside ${UV_INDEX-none}\" ;; esac\n",
		"packages.txt": "sympy==1.14.0 --hash=sha256:def\ntorch==2.12.1 --hash=sha256:abc\n",
	}
	for _, name := range []string{"torch.sh", "site.sh"} {
		text, err := os.ReadFile("../dockerfiles/" + name)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(text)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s := site(t, NetworkOptions{ExtraIndexURLs: []string{"https://extra.example.org/simple"}}, map[string]string{torchIndexes: "https://m.example.org/torch/"})
	for index, beside := range map[string]string{"": "", "cu126": "https://m.example.org/torch/cu126 "} {
		got := told(t, s, "sh "+filepath.Join(dir, "torch.sh"), "PATH="+dir+":"+os.Getenv("PATH"), "PYTHON=3.11", "DSBUILD_ENV=/env", "TORCH_INDEX="+index)
		want := "pip install --python /env --no-deps --require-hashes --only-binary :all: -r - torch==2.12.1 --hash=sha256:abc, beside " + beside + "https://extra.example.org/simple\n"
		if got != want {
			t.Errorf("%s: %s", index, got)
		}
	}
}

func TestSiteErrors(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		o    NetworkOptions
		env  map[string]string
		want string
	}{
		{NetworkOptions{IndexURL: "ftp://u:geheim@host/"}, nil, "--index-url: not an HTTP or HTTPS URL"},
		{NetworkOptions{}, map[string]string{torchIndexes: "geheim"}, torchIndexes + ": not an HTTP or HTTPS URL"},
		{NetworkOptions{}, map[string]string{"PIP_INDEX_URL": "geheim"}, "PIP_INDEX_URL: not an HTTP or HTTPS URL"},
		{NetworkOptions{ExtraIndexURLs: []string{"http://u:geheim@[::1/"}}, nil, "--extra-index-url: not an HTTP or HTTPS URL"},
		{NetworkOptions{}, map[string]string{aptMirror: "http://u:geheim&@host/"}, "write %23, %26, %5C"},
		{NetworkOptions{CA: empty}, nil, "--ca: " + empty + " contains no PEM certificate"},
		{NetworkOptions{}, map[string]string{"SSL_CERT_FILE": empty + ".not"}, "SSL_CERT_FILE: open " + empty + ".not: no such file"},
	} {
		_, err := NewNetwork(c.o, func(name string) string { return c.env[name] })
		if fault.ExitCode(err) != 2 || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error()+fault.Hint(err), "geheim") || !strings.Contains(fault.Hint(err), "set ") {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}

// No secret gets through a reporter, a log or an error; what is none does.
func TestSiteSecrets(t *testing.T) {
	s := site(t, NetworkOptions{IndexURL: "https://ci:p%40ss-word@index.example.org/simple?key=abcdef"}, map[string]string{
		"PIP_EXTRA_INDEX_URL": "https://token-1234@b.example.org/", "HTTP_PROXY": "http://me:abc@proxy:1",
		"CCACHE_REMOTE_STORAGE": "http://cache/|bearer-token=bear-5678|layout=flat",
	})
	for given, shown := range map[string][]string{
		"https://ci:p%40ss%2dword@index.example.org/simple": {"p%40ss%2dword", "p@ss-word", "p%40ss-word"},
		"https://ci:two  words@index.example.org/simple":    {"two  words", "two%20%20words", "two++words"},
	} {
		var log bytes.Buffer
		fmt.Fprint(site(t, NetworkOptions{}, map[string]string{"HTTPS_PROXY": given}).Log(&log), strings.Join(shown, " "))
		if log.String() != "*** *** ***" {
			t.Errorf("%s: the log shows %s", given, &log)
		}
	}
	line := "GET https://ci:p%40ss-word@index.example.org/simple?key=abcdef p@ss-word Y2k6cEBzcy13b3Jk token-1234@b bear-5678 me:abc@ ci abc layout=flat"
	clean := "GET https://***@index.example.org/simple?*** *** *** ***@b *** ***@ ci abc layout=flat"

	var log, said bytes.Buffer
	fmt.Fprintln(s.Log(&log), line)
	rep := s.Reporter(ui.New(&said, ui.Options{}))
	rep.Warn("%s", line)
	step := rep.Step(line)
	step.End(ui.Done, line)
	if log.String() != clean+"\n" || strings.Count(said.String(), clean) != 3 {
		t.Errorf("log %s\nsaid %s\nwant %s", &log, &said, clean)
	}
	cause := errors.New(line)
	err := s.Error(fault.WithHint(fmt.Errorf("step: %w", cause), "try %s", line))
	if strings.Contains(err.Error()+fault.Hint(err), "p%40ss") || !strings.Contains(fault.Hint(err), clean) || !errors.Is(err, cause) {
		t.Errorf("%v\nhint: %s", err, fault.Hint(err))
	}
	if plain := errors.New("nothing to hide"); s.Error(plain) != plain || //nolint:errorlint // the very same one
		s.Error(nil) != nil {
		t.Error("an error without a secret is another one")
	}
}

// A file of other bytes than nvcc's package is refused at once, with what is taken.
func TestSiteToolkit(t *testing.T) {
	file := filepath.Join(t.TempDir(), "toolkit.deb")
	if err := os.WriteFile(file, []byte("other"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, given := range []string{file, file + ".missing", filepath.Dir(file)} {
		_, err := NewNetwork(NetworkOptions{NvccDeb: given}, func(string) string { return "" })
		if fault.ExitCode(err) != 2 || !strings.Contains(fault.Hint(err), "set --nvcc-deb to Debian's package") {
			t.Errorf("%s: %v", given, err)
		}
	}
}
