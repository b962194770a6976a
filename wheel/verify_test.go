package wheel_test

import (
	"archive/zip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

func TestVerifyFindsNoDamage(t *testing.T) {
	v, err := wheel.Verify(t.Context(), wheeltest.Packed(t, t.TempDir(), wheeltest.Options{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Err(); err != nil {
		t.Error(err)
	}
	if v.Manifest == nil || len(v.SHA256) != 64 || v.Size == 0 || len(v.Checks) != 11 {
		t.Errorf("%+v", v)
	}
}

// Whatever was done to a wheel, the damage is named.
func TestVerifyNamesTheDamage(t *testing.T) {
	for _, d := range wheeltest.Damages() {
		t.Run(d.Name, func(t *testing.T) {
			v, err := wheel.Verify(t.Context(), d.Damaged(t, t.TempDir()))
			if err != nil {
				t.Fatal(err)
			}
			if err := v.Err(); fault.ExitCode(err) != fault.Wheel || !strings.Contains(err.Error(), d.Finding) {
				t.Errorf("%v, want %s", err, d.Finding)
			}
		})
	}
}

// What lies beside a wheel is held against it.
func TestVerifyBeside(t *testing.T) {
	path := wheeltest.Packed(t, t.TempDir(), wheeltest.Options{})
	m, err := wheel.ReadManifest(path)
	if err != nil {
		t.Fatal(err)
	}
	m.Builder, m.Dsbuild = "dagger", "1.2.3"
	statement, err := wheel.Provenance(m, wheel.Build{}, time.Unix(1, 5), time.Unix(1, 9))
	if !strings.Contains(string(statement), `"finishedOn": "1970-01-01T00:00:01Z"`) || !strings.Contains(string(statement), `"startedOn": "1970-01-01T00:00:01Z"`) {
		t.Errorf("times in %s", statement)
	}
	if err != nil {
		t.Fatal(err)
	}
	other := m
	other.SHA256, other.Archs = strings.Repeat("0", 64), []string{"9.0"}
	otherStatement, err := wheel.Provenance(other, wheel.Build{}, time.Unix(1, 0), time.Unix(2, 0))
	if err != nil {
		t.Fatal(err)
	}
	sums := filepath.Join(filepath.Dir(path), wheel.SumsName)
	beside := path + wheel.ByteCodeSuffix
	if err := os.WriteFile(beside, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		file, text string
		want       []string // none: all is right
		skipped    string   // the check that has nothing to compare with
	}{
		"sums":                    {sums, m.SHA256 + "  " + filepath.Base(path) + "\n", nil, ""},
		"sums of others":          {sums, m.SHA256 + "  other.whl\n", nil, "sha256"},
		"sums in capitals":        {sums, strings.ToUpper(m.SHA256) + " *" + filepath.Base(path) + "\r\n", nil, ""},
		"sums by a path":          {sums, other.SHA256 + "  ./" + filepath.Base(path) + "\n", []string{"sha256: lists sha256 000"}, ""},
		"sums of byte code":       {sums, m.SHA256 + "  " + filepath.Base(path) + "\n" + other.SHA256 + "  " + filepath.Base(beside) + "\n", []string{"sha256: lists sha256 000"}, ""},
		"sums, and one differs":   {sums, m.SHA256 + "  " + filepath.Base(path) + "\n" + other.SHA256 + "  " + filepath.Base(path) + "\n", []string{"sha256: lists sha256 000"}, ""},
		"sums behind a long line": {sums, strings.Repeat("x", 1<<20) + "\n" + other.SHA256 + "  " + filepath.Base(path) + "\n", []string{"sha256: lists sha256 000"}, ""},
		"sums differ":             {sums, other.SHA256 + "  " + filepath.Base(path) + "\n", []string{"sha256: lists sha256 000"}, ""},
		"manifest":                {path + wheel.ManifestSuffix, text(t, m), nil, ""},
		"manifest of another":     {path + wheel.ManifestSuffix, text(t, other), []string{"sidecar manifest: is for", "sidecar manifest: differs from the embedded manifest"}, ""},
		"manifest is none":        {path + wheel.ManifestSuffix, "{", []string{"sidecar manifest: manifest: unexpected end"}, ""},
		"statement":               {path + wheel.ProvenanceSuffix, string(statement), nil, ""},
		"statement about another": {path + wheel.ProvenanceSuffix, string(otherStatement), []string{"provenance: for sha256 000"}, ""},
		"statement of sources": {
			path + wheel.ProvenanceSuffix, strings.ReplaceAll(string(statement), m.Source.SHA256, strings.Repeat("9", 64)),
			[]string{"provenance: the sources have sha256 999"},
			"",
		},
		"statement with more": {
			path + wheel.ProvenanceSuffix, strings.Replace(strings.Replace(string(statement), `"runDetails"`, `"x_later": 1, "runDetails"`, 1), `"_type"`, `"later": {}, "_type"`, 1), nil, "",
		},
		"statement of no base": {
			path + wheel.ProvenanceSuffix, strings.Replace(string(statement), `"name": "base"`, `"name": "other"`, 1),
			[]string{"provenance: the base has sha256 nothing, but efef"},
			"",
		},
		"statement is none": {path + wheel.ProvenanceSuffix, `{"_type":"x"}`, []string{"provenance: wrong statement type"}, ""},
	} {
		if err := os.WriteFile(c.file, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		v, err := wheel.Verify(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		found := v.Findings()
		for i, want := range c.want {
			if len(found) != len(c.want) || !strings.HasPrefix(found[i], want) {
				t.Errorf("%s: %q, want %q", name, found, c.want)
			}
		}
		if len(c.want) == 0 && len(found) > 0 {
			t.Errorf("%s: %q", name, found)
		}
		if c.skipped != "" && !slices.ContainsFunc(v.Checks, func(k wheel.Check) bool { return k.Name == c.skipped && k.Skipped }) {
			t.Errorf("%s: the check %s was not skipped: %+v", name, c.skipped, v.Checks)
		}
		if err := os.Remove(c.file); err != nil {
			t.Fatal(err)
		}
	}
}

func text(t *testing.T, v any) string {
	t.Helper()
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// A manifest next to a wheel that has none was there when it was built.
func TestVerifyManifestRemoved(t *testing.T) {
	path := wheeltest.Packed(t, t.TempDir(), wheeltest.Options{})
	m, err := wheel.ReadManifest(path)
	if err != nil {
		t.Fatal(err)
	}
	files := wheeltest.Read(t, path)
	delete(files, wheeltest.Member(t, files, wheel.ManifestName))
	wheeltest.Write(t, path, files)
	if m.SHA256, m.Size, err = wheel.HashFile(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+wheel.ManifestSuffix, []byte(text(t, m)), 0o644); err != nil {
		t.Fatal(err)
	}
	v, err := wheel.Verify(t.Context(), path)
	if err != nil || !slices.Equal(v.Findings(), []string{"sidecar manifest: the wheel has no embedded manifest"}) {
		t.Errorf("%q, %v", v.Findings(), err)
	}
}

// A wheel of somebody else's is held against its own words alone.
func TestVerifyWithoutManifest(t *testing.T) {
	v, err := wheel.Verify(t.Context(), wheeltest.Compiled(t, t.TempDir(), wheeltest.Options{}))
	if err != nil {
		t.Fatal(err)
	}
	if v.Manifest != nil || v.Err() != nil {
		t.Errorf("%+v, %v", v.Manifest, v.Err())
	}
	var skipped []string
	for _, c := range v.Checks {
		if c.Skipped {
			skipped = append(skipped, c.Name)
		}
	}
	if got := strings.Join(skipped, ","); got != "sha256,sidecar manifest,provenance,ops,archs,CPU level,libraries,SBOM" {
		t.Error(got)
	}
}

// The name of a wheel may promise more than what its build wrote into WHEEL, if
// the promise is kept; it may not contradict it. A manifest allows neither.
func TestVerifyRenamed(t *testing.T) {
	for tag, want := range map[string]string{
		"cp311-cp311-linux_x86_64":                               "",
		"cp311-cp311-manylinux_2_17_x86_64":                      "",
		"cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64": "",
		"cp311-cp311-manylinux_2_17_aarch64":                     "tags: the file name has tag cp311-cp311-linux_aarch64, but WHEEL does not",
		"cp310-cp310-manylinux_2_17_x86_64":                      "tags: the file name has tag cp310-cp310-linux_x86_64, but WHEEL does not",
		"cp311-cp311-manylinux1_x86_64":                          "tags: tagged manylinux1_x86_64, needs glibc 2.14, GLIBCXX nothing",
		"cp311-cp311-win_amd64":                                  "tags: the file name has tag cp311-cp311-win_amd64, but WHEEL does not",
	} {
		path := wheeltest.Compiled(t, t.TempDir(), wheeltest.Options{})
		renamed := strings.Replace(path, "cp311-cp311-linux_x86_64", tag, 1)
		if err := os.Rename(path, renamed); err != nil {
			t.Fatal(err)
		}
		v, err := wheel.Verify(t.Context(), renamed)
		if err != nil {
			t.Fatal(err)
		}
		if found := strings.Join(v.Findings(), "; "); found != "" && want == "" || !strings.Contains(found, want) {
			t.Errorf("%s: %s, want %s", tag, found, want)
		}
	}
}

// Ops have the archs that are said of them, and not those of others.
func TestVerifyArchsByOp(t *testing.T) {
	ops := []wheeltest.Op{
		{Name: "fp_quantizer", Dir: "fp_quantizer", SASS: []string{"8.0"}},
		{Name: "quantizer", Dir: "quantizer", SASS: []string{"7.5", "8.0"}},
		{Name: "utils", Dir: "."},
	}
	path := wheeltest.Packed(t, t.TempDir(), wheeltest.Options{Ops: ops})
	m, err := wheel.ReadManifest(path)
	if err != nil {
		t.Fatal(err)
	}
	if fp, ok := m.OpArchs["fp_quantizer"]; len(m.OpArchs) != 1 || !ok || !slices.Equal(fp.Archs, []string{"8.0"}) || len(fp.PTX) != 0 {
		t.Errorf("%+v", m.OpArchs)
	}
	files := wheeltest.Read(t, path)
	high, low := ops[0].Path("cp311", wheel.X86), ops[1].Path("cp311", wheel.X86)
	for _, c := range []struct{ high, low, want string }{
		{files[high], files[low], ""},
		{files[low], files[low], "archs: op fp_quantizer has SASS for 7.5, 8.0, the manifest says 8.0"},
		{files[high], files[high], "archs: op quantizer has SASS for 8.0, the manifest says 7.5, 8.0"},
		{files[ops[2].Path("cp311", wheel.X86)], files[low], "archs: op fp_quantizer has SASS for nothing, the manifest says 8.0"},
	} {
		files[high], files[low] = c.high, c.low
		wheeltest.Write(t, path, files)
		v, err := wheel.Verify(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		var archs []string
		for _, f := range v.Findings() {
			if strings.HasPrefix(f, "archs:") {
				archs = append(archs, f)
			}
		}
		if got := strings.Join(archs, "; "); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// What ops need on a node is required by the wheel.
func TestPackRequires(t *testing.T) {
	compiled := wheeltest.Compiled(t, t.TempDir(), wheeltest.Options{})
	m := wheel.Manifest{CPU: "x86-64-v3", Requires: []string{"deepspeed-kernels==0.0.1.dev1698255861"}}
	path, err := wheel.Pack(t.Context(), compiled, t.TempDir(), m, wheel.Build{Python: "3.11", Torch: "2.15.0", CUDA: "13.2", Patches: []string{"transformer"}})
	if err != nil {
		t.Fatal(err)
	}
	v, err := wheel.Verify(t.Context(), path)
	if err != nil || v.Err() != nil {
		t.Fatal(err, v.Err())
	}
	want := []string{"torch<2.16,>=2.15", "deepspeed-kernels==0.0.1.dev1698255861"}
	if !slices.Equal(v.Contents.Requires, want) || !slices.Equal(v.Manifest.Patches, []string{"transformer"}) {
		t.Errorf("%q, patches %q", v.Contents.Requires, v.Manifest.Patches)
	}
	files := wheeltest.Read(t, path)
	for name, text := range files {
		if strings.HasSuffix(name, "/METADATA") {
			files[name] = strings.Replace(text, "Requires-Dist: deepspeed-kernels==0.0.1.dev1698255861\n", "", 1)
		}
	}
	wheeltest.Write(t, path, files)
	v, err = wheel.Verify(t.Context(), path)
	if err != nil || !strings.Contains(strings.Join(v.Findings(), "; "), "metadata: the ops need deepspeed-kernels==0.0.1.dev1698255861, but METADATA does not require it") {
		t.Errorf("%v %q", err, v.Findings())
	}
}

// An op that loads the runtime of one CUDA is for that CUDA alone, also without device code.
func TestPackListsOpsOfOneCUDA(t *testing.T) {
	m, err := wheel.ReadManifest(wheeltest.Packed(t, t.TempDir(), wheeltest.OfKind(wheel.KindAllOps)))
	if err != nil {
		t.Fatal(err)
	}
	for cuda, want := range map[string]bool{"13.2": true, "12.8": false, "": false} {
		if got := m.OpsFor(cuda); slices.Contains(got, "gds") != want || !slices.Contains(got, "utils") {
			t.Errorf("ops for CUDA %q: %v; want gds: %v", cuda, got, want)
		}
	}
}

// Packed twice, from other directories, a wheel has the same bytes.
func TestPackIsReproducible(t *testing.T) {
	sums := map[string]bool{}
	for range 2 {
		sum, _, err := wheel.HashFile(wheeltest.Packed(t, t.TempDir(), wheeltest.Options{}))
		if err != nil {
			t.Fatal(err)
		}
		sums[sum] = true
	}
	if len(sums) != 1 {
		t.Errorf("%v", sums)
	}
}

// What Pack writes has to stay what it is for one PackFormat: this wheel holds
// no machine code, which would differ from compiler to compiler, and is hashed
// unpacked, for compression differs between releases of Go.
func TestPackFormat(t *testing.T) {
	path := wheeltest.Packed(t, t.TempDir(), wheeltest.Options{Ops: []wheeltest.Op{}})
	z, err := zip.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	h := sha256.New()
	for _, f := range z.File {
		if f.ReaderVersion != 20 || f.CreatorVersion != 3<<8|20 || len(f.Extra)+len(f.Comment) > 0 {
			t.Errorf("%s: %+v", f.Name, f.FileHeader)
		}
		fmt.Fprintln(h, f.Name, f.Flags, f.Method, f.Modified.UTC(), f.ExternalAttrs, f.UncompressedSize64)
		r, err := f.Open()
		if err == nil {
			_, err = io.Copy(h, r)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	const want = "4 625622288b7b520d6d4fc7a19d48848e5514f551832759c485498ac382c7819b"
	if got := wheel.PackFormat + " " + hex.EncodeToString(h.Sum(nil)); got != want {
		t.Errorf("the format and the files of a packed wheel are %s, were %s: a change of the files needs a new PackFormat", got, want)
	}
}

// Tags that promise what dsbuild compares with no code are not said to be right.
func TestVerifyTagsWithoutRule(t *testing.T) {
	for tag, against := range map[string]string{
		"py3-none-any":                     "WHEEL",
		"cp311-cp311-linux_x86_64":         "WHEEL",
		"cp311-cp311-win_amd64":            "WHEEL agrees; code is not compared with win_amd64",
		"cp311-cp311-macosx_11_0_arm64":    "WHEEL agrees; code is not compared with macosx_11_0_arm64",
		"cp311-cp311-musllinux_1_2_x86_64": "WHEEL agrees; code is not compared with musllinux_1_2_x86_64",
	} {
		path := filepath.Join(t.TempDir(), "other-1.0-"+tag+".whl")
		wheeltest.Write(t, path, map[string]string{
			"other-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: other\nVersion: 1.0\n",
			"other-1.0.dist-info/WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: " + tag + "\n",
		})
		v, err := wheel.Verify(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(v.Checks, func(c wheel.Check) bool { return c.Name == "tags" })
		if c := v.Checks[i]; c.Against != against || c.Skipped != (against != "WHEEL") || len(c.Damage) > 0 {
			t.Errorf("%s: %+v", tag, c)
		}
	}
}
