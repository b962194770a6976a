package publish_test

import (
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/publish"
)

func TestTargets(t *testing.T) {
	for _, text := range []string{
		"wheels", "./a:b", `C:\wheels`, "/srv/wheels", "file:///srv/wheels", "s3://wheels", "s3://wheels/deep/speed/", "https://pypi.example.org/legacy/",
		"pypirc:internal", "github:example/wheels@v1.0", "github:example/wheels@release/1", "gitlab:group/sub/wheels@v1.0+g1", "oci://registry.example.org:5000/team/wheels",
	} {
		if to, err := publish.ParseTarget(text); err != nil || to.String() != text {
			t.Errorf("%s: %v", text, err)
		}
	}
	if to, _ := publish.ParseTarget("s3://wheels/deep/speed/"); func() bool { b, p, ok := to.Bucket(); return !ok || b != "wheels" || p != "deep/speed/" }() {
		t.Error(to.Bucket())
	}
	for text, why := range map[string]string{
		"":                                    "it is empty",
		"ftp://host/dir":                      "no place of the form ftp:",
		"s3:wheels":                           "the name of a bucket",
		"s3://Wheels/":                        `"Wheels" is not the name of a bucket (3 to 63 characters: a-z, 0-9, . and -)`,
		"s3://x/y":                            `"x" is not the name of a bucket`,
		"s3://me:secret@wheels/y":             "must have no login",
		"s3://wheels/a/../b":                  "an empty part, or one of dots",
		"file://server/dir":                   "an absolute path",
		"https://me:secret@pypi.example.org/": "must have no login",
		"https://pypi.example.org/?a=b":       "no query",
		"https://":                            "not the address of an index",
		"pypirc:":                             "the name of a section",
		"github:wheels@v1":                    "OWNER/REPO@TAG",
		"github:example/wheels":               "OWNER/REPO@TAG",
		"gitlab:wheels@v1":                    "GROUP/PROJECT@TAG",
		"gitlab:group/wheels@a/b":             "GROUP/PROJECT@TAG",
		"oci://registry.example.org":          "a registry and a repository",
		"oci://me:secret@registry/team":       "no login",
		"oci://registry.example.org/team:tag": "no login, tag or digest",
		"oci://registry.example.org/Team":     "not the name of a repository",
	} {
		_, err := publish.ParseTarget(text)
		wrong := new(publish.TargetError)
		if !errors.As(err, &wrong) || wrong.ExitCode() != 2 || !strings.Contains(err.Error(), why) || strings.Contains(err.Error(), "secret") || !strings.Contains(hint.Of(err), "s3://BUCKET") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// An index goes into a folder or a bucket; no other place is taken for the name of a folder.
func TestIndexTarget(t *testing.T) {
	t.Parallel()
	for text, why := range map[string]string{
		"s3://Wheels/p":                        `"Wheels" is not the name of a bucket`,
		"s3://":                                "the name of a bucket",
		"s3://me:secret@wheels/p":              "must have no login",
		"oci://registry.example.org/team":      "the index goes into a folder or s3://BUCKET[/PREFIX]",
		"file:///tmp/f":                        "the index goes into a folder",
		"https://me:secret@wheels.example.org": "the index goes into a folder",
		"pypirc:internal":                      "the index goes into a folder",
	} {
		_, err := publish.ParseIndexTarget(text)
		if hint.ExitCode(err) != 2 || !strings.Contains(err.Error(), why) || strings.Contains(err.Error(), "secret") || hint.Of(err) != "name a folder such as www, or a bucket such as s3://wheels/deepspeed" {
			t.Errorf("%s: %v, hint %q", text, err, hint.Of(err))
		}
	}
	for _, text := range []string{"www", "/srv/www", "./s3:/x", "s3://wheels/p"} {
		if to, err := publish.ParseIndexTarget(text); err != nil || to.String() != text {
			t.Errorf("%s: %v, %v", text, to, err)
		}
	}
}

func FuzzTarget(f *testing.F) {
	for _, seed := range []string{"s3://a/b", "oci://r/x", "https://h/", "github:a/b@c", "C:\\x", "file:///x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		to, err := publish.ParseTarget(text)
		if err == nil && to.String() != text {
			t.Errorf("%q became %q", text, to)
		}
		if _, prefix, ok := to.Bucket(); ok && (strings.HasPrefix(prefix, "/") || strings.Contains("/"+prefix, "/../")) {
			t.Errorf("%q has the prefix %q", text, prefix)
		}
	})
}

// Credentials come from the files of twine, of netrc and of Amazon's tools.
func TestCredentials(t *testing.T) {
	wheels, _ := built(t, "0.19.8")
	netrc := "# comment\nmachine other.example.org login x password y\nmacdef init\ncd /\nmachine 127.0.0.1 login evil password evil\n\nmachine 127.0.0.1\n\tlogin ci password index-password\n"
	for _, c := range []struct {
		name          string
		pypirc, netrc string
		env           map[string]string
		to            string
		fails         string
	}{
		{name: "environment", env: map[string]string{"TWINE_USERNAME": "ci", "TWINE_PASSWORD": "index-password"}},
		{name: "netrc", netrc: netrc},
		{name: "netrc without it", netrc: "machine other login ci password index-password", fails: "401"},
		{name: "pypirc", pypirc: "[distutils]\nindex-servers = internal\n[internal]\nrepository = ADDRESS\nusername = ci\npassword = index-password\n", to: "pypirc:internal"},
		{name: "pypirc with a sign", pypirc: "[internal]\nrepository = ADDRESS\nusername = ci\npassword = index-password;#\n", to: "pypirc:internal", fails: "401"},
		{name: "pypirc and netrc", pypirc: "[internal]\nrepository = ADDRESS\n", netrc: netrc, to: "pypirc:internal"},
		{name: "other section", pypirc: "[internal]\nrepository = ADDRESS\n", to: "pypirc:external", fails: "no section [external]"},
		{name: "no repository", pypirc: "[internal]\nusername = ci\n", to: "pypirc:internal", fails: "has no repository"},
		{name: "a folder", pypirc: "[internal]\nrepository = /srv\n", to: "pypirc:internal", fails: "not the address of an index"},
		{name: "no file", to: "pypirc:internal", fails: "there is no ~/.pypirc"},
		{name: "no login", fails: "401"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := uploadPlace(t)
			p.home, p.env = t.TempDir(), c.env
			for name, text := range map[string]string{".pypirc": c.pypirc, ".netrc": c.netrc} {
				if text == "" {
					continue
				}
				if err := os.WriteFile(filepath.Join(p.home, name), []byte(strings.ReplaceAll(text, "ADDRESS", p.to)), 0o600); err != nil {
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

	p := bucketPlace(t, false)
	p.home = t.TempDir()
	if err := os.Mkdir(filepath.Join(p.home, ".aws"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"credentials": "[site]\naws_access_key_id = " + accessKey + "\naws_secret_access_key = " + p.env["AWS_SECRET_ACCESS_KEY"] + "\n",
		"config":      "[default]\nregion = nowhere\n[profile site]\nregion = eu-west-1\nendpoint_url = " + p.env["AWS_ENDPOINT_URL_S3"] + "\n",
	} {
		if err := os.WriteFile(filepath.Join(p.home, ".aws", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.env = map[string]string{"AWS_PROFILE": "site"}
	if _, err := publish.Run(t.Context(), p.options(t, wheels)); err != nil {
		t.Error(err)
	}
	p.env["AWS_ENDPOINT_URL"] = "nowhere"
	wrong := new(publish.TargetError)
	if _, err := publish.Run(t.Context(), p.options(t, wheels)); !errors.As(err, &wrong) {
		t.Error(err)
	}
}

// An index that tells of no files refuses one that it has; so do stores without conditions, and a
// release that is not there.
func TestLessHelpfulServers(t *testing.T) {
	wheels, files := built(t, "0.19.8")
	p := uploadPlace(t)
	p.check = ""
	opt := p.options(t, wheels)
	if _, err := publish.Run(t.Context(), opt); err != nil {
		t.Fatal(err)
	}
	refused := new(publish.ConflictError)
	if _, err := publish.Run(t.Context(), opt); !errors.As(err, &refused) || !strings.Contains(hint.Of(err), "--check-url") {
		t.Error(err, hint.Of(err))
	}

	s := newStore(t)
	s.ignores = true
	address, _ := serve(t, s)
	p = place{to: "s3://wheels/x", beside: true, env: map[string]string{"AWS_ACCESS_KEY_ID": accessKey, "AWS_SECRET_ACCESS_KEY": s.secret, "AWS_ENDPOINT_URL": address, "AWS_REGION": "us-east-1"}}
	if _, err := publish.Run(t.Context(), p.options(t, wheels)); err != nil {
		t.Fatal(err)
	}
	there := s.files("x/")
	delete(there, filepath.Base(wheels[0])+".metadata")
	same(t, there, files)
	p.to = "s3://absent/x"
	if _, err := publish.Run(t.Context(), p.options(t, wheels)); err == nil || !strings.Contains(err.Error(), "s3://absent/x/") {
		t.Error(err)
	}

	secure := httptest.NewTLSServer(newStore(t))
	t.Cleanup(secure.Close)
	p = bucketPlace(t, false)
	p.env = map[string]string{"AWS_ACCESS_KEY_ID": accessKey, "AWS_SECRET_ACCESS_KEY": newStore(t).secret, "AWS_ENDPOINT_URL": secure.URL} // the store tells the region
	opt = p.options(t, wheels)
	opt.Transport = secure.Client().Transport
	if sum, err := publish.Run(t.Context(), opt); err != nil {
		t.Error(sum, err)
	}
	opt.Transport = nil // which does not trust the certificate
	if _, err := publish.Run(t.Context(), opt); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Error(err)
	}

	for _, p := range []place{githubPlace(t), gitlabPlace(t)} {
		p.to = strings.Replace(p.to, "@v1", "@v2", 1)
		if _, err := publish.Run(t.Context(), p.options(t, wheels)); err == nil || !strings.Contains(hint.Of(err), "create the release v2 first") {
			t.Error(err)
		}
	}
}
