package publish_test

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/release/publish"
)

func TestTargets(t *testing.T) {
	for _, text := range []string{
		"wheels", "./a:b", `C:\wheels`, "/srv/wheels", "s3://wheels", "s3://wheels/deep/speed/", "https://pypi.example.org/legacy/",
		"pypirc:internal", `./ci@host:wheels`, "oci://registry.example.org:5000/team/wheels",
	} {
		if to, err := publish.ParseTarget(text); err != nil || to.String() != text {
			t.Errorf("%s: %v", text, err)
		}
	}
	for text, why := range map[string]string{
		"":                                    "it is empty",
		"ftp://host/dir":                      "no place of the form ftp:",
		"s3:wheels":                           "the name of a bucket",
		"s3://Wheels/":                        `"Wheels" is not the name of a bucket (3 to 63 characters: a-z, 0-9, . and -)`,
		"s3://x/y":                            `"x" is not the name of a bucket`,
		"s3://me:secret@wheels/y":             "must have no login",
		"s3://wheels/a/../b":                  "an empty part, or one of dots",
		"file:///srv/wheels":                  "no place of the form file:",
		"https://me:secret@pypi.example.org/": "must have no login",
		"https://pypi.example.org/?a=b":       "no query",
		"https://":                            "not the address of an index",
		"pypirc:":                             "the name of a section",
		"oci://registry.example.org":          "a registry and a repository",
		"oci://me:secret@registry/team":       "no login",
		"oci://registry.example.org/team:tag": "no login, tag or digest",
		"oci://registry.example.org/Team":     "not the name of a repository",
	} {
		_, err := publish.ParseTarget(text)
		if fault.ExitCode(err) != 2 || !strings.Contains(err.Error(), why) || strings.Contains(err.Error(), "secret") || !strings.Contains(fault.Hint(err), "s3://BUCKET") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// What another program does is refused with a hint that names it.
func TestTargetsOfOtherPrograms(t *testing.T) {
	for text, program := range map[string]string{
		"github:example/wheels@v1": "gh release upload or glab release upload: docs/publish.md",
		"gitlab:team/wheels@v1":    "gh release upload or glab release upload: docs/publish.md",
		"ci@host:/srv/wheels":      "rsync or scp; a folder of this name here is ./ci@host:/srv/wheels",
		"ci@[::1]:wheels":          "rsync or scp",
	} {
		_, err := publish.ParseTarget(text)
		if fault.ExitCode(err) != 2 || !strings.Contains(fault.Hint(err), program) {
			t.Errorf("%s: %v, hint %q, want exit code 2 and a hint with %q", text, err, fault.Hint(err), program)
		}
	}
}

func FuzzTarget(f *testing.F) {
	for _, seed := range []string{"s3://a/b", "oci://r/x", "https://h/", "ci@host:x", "C:\\x", "file:///x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		to, err := publish.ParseTarget(text)
		if err == nil && to.String() != text {
			t.Errorf("%q became %q", text, to)
		}
	})
}

// Credentials come from the environment and the file of twine.
func TestCredentials(t *testing.T) {
	wheels, _ := built(t, "0.19.8")
	for _, c := range []struct {
		name   string
		pypirc string
		env    map[string]string
		to     string
		fails  string
	}{
		{name: "environment", env: map[string]string{"TWINE_USERNAME": "ci", "TWINE_PASSWORD": "index-password"}},
		{name: "pypirc", pypirc: "[distutils]\nindex-servers = internal\n[internal]\nrepository = ADDRESS\nusername = ci\npassword = index-password\n", to: "pypirc:internal"},
		{name: "pypirc with a sign", pypirc: "[internal]\nrepository = ADDRESS\nusername = ci\npassword = index-password;#\n", to: "pypirc:internal", fails: "403"},
		{name: "other section", pypirc: "[internal]\nrepository = ADDRESS\n", to: "pypirc:external", fails: "no section [external]"},
		{name: "no repository", pypirc: "[internal]\nusername = ci\n", to: "pypirc:internal", fails: "has no repository in the section [internal]"},
		{name: "a folder", pypirc: "[internal]\nrepository = /srv\n", to: "pypirc:internal", fails: "not the address of an index"},
		{name: "no file", to: "pypirc:internal", fails: "~/.pypirc is not there"},
		{name: "no login", fails: "401"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := uploadPlace(t)
			p.home, p.env = t.TempDir(), c.env
			if c.pypirc != "" {
				if err := os.WriteFile(filepath.Join(p.home, ".pypirc"), []byte(strings.ReplaceAll(c.pypirc, "ADDRESS", p.to)), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if c.to != "" {
				p.to = c.to
			}
			_, err := publish.Run(t.Context(), p.options(t, wheels))
			if c.fails == "" && err != nil || c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)) {
				t.Fatal(err)
			}
			if err != nil && strings.Contains(err.Error(), "index-password") {
				t.Error(err)
			}
		})
	}
}

// A profile of ~/.aws has the keys and the address of a store. One that is not there is an error.
func TestProfile(t *testing.T) {
	wheels, _ := built(t, "0.19.8")
	p := bucketPlace(t)
	p.home = t.TempDir()
	if err := os.Mkdir(filepath.Join(p.home, ".aws"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"credentials": "[site]\naws_access_key_id = PROFILEKEY\naws_secret_access_key = " + secretKey + "\naws_session_token = session-secret\n",
		"config":      "[default]\nregion = nowhere\n[profile site]\nregion = eu-west-1\nendpoint_url = " + p.env["AWS_ENDPOINT_URL_S3"] + "\n",
	} {
		if err := os.WriteFile(filepath.Join(p.home, ".aws", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.env = map[string]string{"AWS_PROFILE": "site"}
	var signed atomic.Pointer[string]
	p.wrap(func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			header := r.Header.Get("Authorization")
			signed.Store(&header)
			h.ServeHTTP(w, r)
		})
	})
	if _, err := publish.Run(t.Context(), p.options(t, wheels)); err != nil {
		t.Fatal(err)
	}
	if got := *signed.Load(); !strings.Contains(got, "Credential=PROFILEKEY/") || !strings.Contains(got, "/eu-west-1/s3/") {
		t.Errorf("a request is signed as %q, want the profile's key and region", got)
	}
	p.wrap(func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte("<Error><Code>AccessDenied</Code><Message>no session-secret</Message></Error>"))
		})
	})
	if _, err := publish.Run(t.Context(), p.options(t, wheels)); err == nil || strings.Contains(err.Error(), "session-secret") {
		t.Errorf("%v, want an error without the session token", err)
	}
	for env, why := range map[[2]string]string{
		{"AWS_ENDPOINT_URL", "nowhere"}: "the endpoint of S3 must be",
		{"AWS_PROFILE", "nosuch"}:       "the profile nosuch, which is neither in",
	} {
		p.env = map[string]string{"AWS_PROFILE": "site", env[0]: env[1]}
		_, err := publish.Run(t.Context(), p.options(t, wheels))
		if fault.ExitCode(err) != 2 || !strings.Contains(err.Error(), why) {
			t.Errorf("%s=%s: %v, want exit code 2 and %q", env[0], env[1], err, why)
		}
	}
}

// An index that tells of no files refuses one that it has, and one of them may be the beginning of an
// upload.
func TestIndexThatHasTheFile(t *testing.T) {
	wheels, files := built(t, "0.19.8")
	p := uploadPlace(t)
	simple := p.check
	p.check = ""
	opt := p.options(t, wheels)
	if _, err := publish.Run(t.Context(), opt); err != nil {
		t.Fatal(err)
	}
	if _, err := publish.Run(t.Context(), opt); fault.ExitCode(err) != 4 || !strings.Contains(fault.Hint(err), "--check-url") {
		t.Errorf("%v, hint %q, want a conflict and --check-url", err, fault.Hint(err))
	}
	p.check = simple
	name := filepath.Base(wheels[0])
	p.add(name, files[name][:1000])
	if _, err := publish.Run(t.Context(), p.options(t, wheels)); fault.ExitCode(err) != 4 || !strings.Contains(fault.Hint(err), "an upload that was cut off") {
		t.Errorf("%v, hint %q, want a conflict and a word about cut uploads", err, fault.Hint(err))
	}
}

// What an index answers is cut only where no part of a secret can be left: an answer that is too long is
// not shown.
func TestLongAnswer(t *testing.T) {
	wheels, _ := built(t, "0.19.8")
	p := uploadPlace(t)
	p.check = ""
	for _, before := range []int{0, 1<<20 - 6} {
		p.wrap(func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusTeapot)
				_, _ = io.WriteString(w, strings.Repeat(" ", before)+indexPassword)
			})
		})
		_, err := publish.Run(t.Context(), p.options(t, wheels))
		if err == nil || strings.Contains(err.Error(), indexPassword[:4]) {
			t.Errorf("after %d bytes: %v, want an error without a part of the password", before, err)
		}
	}
}

// Stores that do not know the condition get the file without it; a bucket that is not there is named.
func TestLessHelpfulStores(t *testing.T) {
	wheels, files := built(t, "0.19.8")
	p := bucketPlace(t)
	p.wrap(func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("If-None-Match") != "" {
				w.WriteHeader(http.StatusNotImplemented)
				_, _ = w.Write([]byte("<Error><Code>NotImplemented</Code></Error>"))
				return
			}
			h.ServeHTTP(w, r)
		})
	})
	if _, err := publish.Run(t.Context(), p.options(t, wheels)); err != nil {
		t.Fatal(err)
	}
	same(t, p.files(t), files)
	p.to = "s3://absent/x"
	if _, err := publish.Run(t.Context(), p.options(t, wheels)); err == nil || !strings.Contains(err.Error(), "s3://absent/x/") {
		t.Errorf("%v, want the name of the bucket", err)
	}

	secure := httptest.NewUnstartedServer(pass(store(t)))
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	p = bucketPlace(t)
	p.env = map[string]string{"AWS_ACCESS_KEY_ID": accessKey, "AWS_SECRET_ACCESS_KEY": secretKey, "AWS_ENDPOINT_URL": secure.URL} // the store tells the region
	opt := p.options(t, wheels)
	opt.Transport = secure.Client().Transport
	if sum, err := publish.Run(t.Context(), opt); err != nil {
		t.Error(sum, err)
	}
	opt.Transport = nil // which does not trust the certificate
	if _, err := publish.Run(t.Context(), opt); err == nil || !strings.Contains(err.Error(), "certificate") || !strings.Contains(fault.Hint(err), "--ca") {
		t.Errorf("%v, hint %q, want an error about the certificate", err, fault.Hint(err))
	}
}
