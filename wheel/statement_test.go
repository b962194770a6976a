package wheel_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

// Sources that are no release must not pass for one.
func TestStatementNamesItsSource(t *testing.T) {
	t.Parallel()
	file, m, _ := wheeltest.Built(t, t.TempDir(), wheeltest.Options{})
	record, err := wheel.RecordSum(file)
	if err != nil || len(record) != 64 {
		t.Fatal(record, err)
	}
	for want, s := range map[string]wheel.Source{
		"pkg:pypi/deepspeed@0.19.8":          {Kind: "release", Ref: "0.19.8"},
		"git+https://example.org/ds@c0ffee":  {Kind: "git", Ref: "git+https://example.org/ds@main", Commit: "c0ffee"},
		"git+ssh://me@example.org/ds@c0ffee": {Kind: "git", Ref: "git+ssh://me@example.org/ds", Commit: "c0ffee"},
		"git+file:///a@b/ds@c0ffee":          {Kind: "git", Ref: "git+file:///a@b/ds@main", Commit: "c0ffee"},
		"git+me@example.org:ds@c0ffee":       {Kind: "git", Ref: "git+me@example.org:ds@main", Commit: "c0ffee"},
		"path:0.19.8":                        {Kind: "path", Ref: "0.19.8"},
		"sdist:a%2Fb.tar.gz":                 {Kind: "sdist", Ref: "a/b.tar.gz"},
	} {
		m := m
		m.Source = s
		text, err := wheel.Provenance(m, wheel.Build{Record: record}, time.Unix(1, 0), time.Unix(9, 0))
		if err != nil {
			t.Fatal(err)
		}
		f, err := wheel.ReadProvenance(text)
		if err != nil || f.Source != want || f.Record != record || f.Version != "0.19.8" || f.Finished.Unix() != 9 || f.Name != m.Name {
			t.Errorf("%+v, %v, want %s", f, err, want)
		}
	}
	if _, err := wheel.ReadProvenance([]byte(`{"_type":"x"}`)); err == nil {
		t.Error("anything is a statement")
	}
}

func TestSignedName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"a.whl.provenance.json.0a1b.sig": "a.whl", "a.whl.provenance.json.sig": "", "a.whl.provenance.json.x.sig": "", ".whl.provenance.json.0.sig": "",
		"a.whl.provenance.json.0.sig.sig": "", "a.txt.provenance.json.0.sig": "", "a.whl.provenance.json." + strings.Repeat("0", 65) + ".sig": "",
	} {
		if got, ok := wheel.SignedName(name); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %v", name, got, ok)
		}
	}
}
