package signing_test

import (
	"crypto/sha256"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/signingtest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/release/signing"
	"github.com/dsbuild/dsbuild/wheel"
)

// kept describes a signed wheel as a node does that has kept all its files.
func kept(t *testing.T, k signingtest.Keys) signing.Previous {
	t.Helper()
	file, m, statement := wheeltest.Built(t, t.TempDir(), wheeltest.Options{})
	for path, text := range map[string]string{
		file + wheel.ProvenanceSuffix: string(statement), wheel.SignatureFile(file, "0"): k.Sign(t, "a", string(statement)),
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	signed, err := k.Policy(t, "signers: [{name: a, key: $a}]").Accept(file, m.SHA256, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	out := signing.Previous{SHA256: m.SHA256, Signed: &signed, Places: map[string]string{"": "/env/site", "scripts": "/env/bin", "data": "/env"}, Files: map[string][]string{}}
	entries, err := wheel.ParseRecord(strings.NewReader(signed.Record))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if scheme, below := wheel.Place(e.Path); e.Algorithm != "" {
			out.Files[filepath.Join(out.Places[scheme], below)] = []string{e.Digest}
		}
	}
	return out
}

func TestKeptVersions(t *testing.T) {
	t.Parallel()
	k := signingtest.NewKeys(t)
	const trusted = "signers: [{name: a, key: $a}]"
	good := kept(t, k)
	var module string
	for file := range good.Files {
		if filepath.Base(file) == "version.py" {
			module = file
		}
	}
	other := sha256.Sum256([]byte("evil = True\n"))
	for name, c := range map[string]struct {
		policy string
		change func(*signing.Previous)
		want   string
	}{
		"as it was signed":               {trusted, func(*signing.Previous) {}, ""},
		"a command as an installer made": {trusted, func(k *signing.Previous) { k.Files[module] = []string{"changed", k.Files[module][0]} }, ""},
		"nothing comes back":             {trusted, func(k *signing.Previous) { k.Files, k.Signed = nil, nil }, ""},
		"data more":                      {trusted, func(k *signing.Previous) { k.Files["/env/site/deepspeed/notes.txt"] = []string{"x"} }, ""},
		"the installer's notes":          {trusted, func(k *signing.Previous) { k.Files["/env/site/deepspeed-0.19.8.dist-info/INSTALLER"] = []string{"x"} }, ""},
		"not signed":                     {trusted, func(k *signing.Previous) { k.Signed = nil }, "previous version is unsigned"},
		"of another wheel":               {trusted, func(k *signing.Previous) { k.SHA256 = strings.Repeat("0", 64) }, "is for sha256 "},
		"a revoked key":                  {"signers: [{name: b, key: $b}]\nrevoked: ['@a']", func(*signing.Previous) {}, "is revoked"},
		"too old":                        {trusted + "\nminimum: 0.20", func(*signing.Previous) {}, "older than 0.20"},
		"another list of files":          {trusted, func(k *signing.Previous) { k.Signed.Record += "x.py,,\n" }, "file list does not match"},
		"an edited module":               {trusted, func(k *signing.Previous) { k.Files[module] = []string{wheel.RecordDigest(other[:])} }, "version.py differs from the signed file"},
		"a link":                         {trusted, func(k *signing.Previous) { k.Files[module] = []string{} }, "version.py differs from the signed file"},
		"a module is gone":               {trusted, func(k *signing.Previous) { delete(k.Files, module) }, "version.py differs from the signed file"},
		"a module more":                  {trusted, func(k *signing.Previous) { k.Files["/env/site/deepspeed/more.py"] = []string{"x"} }, "is not in a signed wheel"},
		"byte code as a module":          {trusted, func(k *signing.Previous) { k.Files["/env/site/deepspeed/more.pyc"] = []string{"x"} }, "is not in a signed wheel"},
		"a library more":                 {trusted, func(k *signing.Previous) { k.Files["/env/site/deepspeed/version.abi3.so"] = []string{"x"} }, "is not in a signed wheel"},
		"a start file":                   {trusted, func(k *signing.Previous) { k.Files["/env/site/x.pth"] = []string{"x"} }, "is not in a signed wheel"},
		"a command more":                 {trusted, func(k *signing.Previous) { k.Files["/env/bin/torchrun"] = []string{"x"} }, "is not in a signed wheel"},
		"a linked folder":                {trusted, func(k *signing.Previous) { k.Files["/env/site/deepspeed/version"] = []string{} }, "is not in a signed wheel"},
		"entry points": {trusted, func(k *signing.Previous) {
			k.Files["/env/site/deepspeed-0.19.8.dist-info/entry_points.txt"] = []string{"x"}
		}, "is not in a signed wheel"},
	} {
		version, signed := good, *good.Signed
		signed.Signatures = slices.Clone(signed.Signatures)
		version.Files, version.Signed = maps.Clone(good.Files), &signed
		c.change(&version)
		err := k.Policy(t, c.policy).CheckPrevious(version, time.Now())
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	var none *signing.Policy
	if err := none.CheckPrevious(signing.Previous{Files: map[string][]string{"/env/site/deepspeed/more.py": {"x"}}}, time.Now()); err != nil {
		t.Errorf("without a policy: %v", err)
	}
}
