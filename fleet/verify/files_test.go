package verify

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

// The files that a node should have are those of the wheel in DeepSpeed's folder, under the names they
// have once installed, by their sha256, whatever digests the wheel's RECORD has.
func TestFilesOfWheel(t *testing.T) {
	t.Parallel()
	files := map[string]string{
		"deepspeed/__init__.py":                             "one",
		"deepspeed/ops/adam.so":                             "two",
		"deepspeed/empty.py":                                "",
		"deepspeed-0.19.8.data/purelib/deepspeed/pure.py":   "three",
		"deepspeed-0.19.8.data/platlib/deepspeed/plat.so":   "four",
		"deepspeed-0.19.8.data/scripts/ds_report":           "#!python\n",
		"deepspeed-0.19.8.dist-info/METADATA":               "Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.19.8\n",
		"deepspeed-0.19.8.dist-info/WHEEL":                  "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"deepspeed_other/deepspeed/x.py":                    "five",
		"deepspeed-0.19.8.data/data/deepspeed/settings.ini": "six",
	}
	want := map[string]string{}
	for name, in := range map[string]string{
		"deepspeed/__init__.py": "one", "deepspeed/ops/adam.so": "two", "deepspeed/empty.py": "", "deepspeed/pure.py": "three", "deepspeed/plat.so": "four",
	} {
		sum := sha256.Sum256([]byte(in))
		want[name] = hex.EncodeToString(sum[:])
	}
	for kind, digest := range map[string]func(string) string{
		"sha256": func(s string) string {
			sum := sha256.Sum256([]byte(s))
			return base64.RawURLEncoding.EncodeToString(sum[:])
		},
		"sha384": func(s string) string {
			sum := sha512.Sum384([]byte(s))
			return base64.RawURLEncoding.EncodeToString(sum[:])
		},
		"sha512": func(s string) string {
			sum := sha512.Sum512([]byte(s))
			return base64.RawURLEncoding.EncodeToString(sum[:])
		},
	} {
		all, record := maps.Clone(files), ""
		for _, name := range slices.Sorted(maps.Keys(files)) {
			record += fmt.Sprintf("%s,%s=%s,%d\n", name, kind, digest(files[name]), len(files[name]))
		}
		all["deepspeed-0.19.8.dist-info/RECORD"] = record + "deepspeed-0.19.8.dist-info/RECORD,,\n"
		path := filepath.Join(t.TempDir(), "deepspeed-0.19.8-py3-none-any.whl")
		wheeltest.Write(t, path, all)
		if v, err := wheel.Verify(t.Context(), path); err != nil {
			t.Fatal(err)
		} else if err := v.Err(); err != nil && strings.Contains(err.Error(), "RECORD") {
			t.Errorf("%s: %v", kind, err)
		}
		got, err := filesOf(path)
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("%s: %v\n%v\nwant\n%v", kind, err, got, want)
		}
	}
}

// A node that sends counts without names, or counts that cannot be, is neither whole nor the end of
// dsbuild.
func TestCountsOfANode(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		p    paths
		want string
	}{
		"one":              {paths{1, []string{"a"}}, "gpu01: a is a link to a directory that is not in RECORD"},
		"more than named":  {paths{7, []string{"a", "b"}}, "gpu01: a, b and 5 more are links to directories that are not in RECORD"},
		"fewer than named": {paths{1, []string{"a", "b"}}, "gpu01: a, b are links to directories that are not in RECORD"},
		"names alone":      {paths{0, []string{"a"}}, ""},
		"a huge count":     {paths{1 << 62, nil}, fmt.Sprintf("gpu01: %d files are links to directories that are not in RECORD", 1<<62)},
	} {
		all := alike(3)
		all[0].installed.Links = c.p
		if got := judge(t, all, nil); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	// A count below zero does not outweigh a file that differs.
	s := alike(1)[0]
	s.installed.mismatched, s.installed.Links = newPaths([]string{"deepspeed/a.py"}), paths{Count: -1}
	if s.matchesRecord() {
		t.Error("the node is whole")
	}
}
