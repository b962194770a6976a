package wheel_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

// statement is a provenance statement that a test changes at will.
type statement map[string]any

// at returns the object at a path of keys; a number is a place in a list.
func (s statement) at(path ...any) map[string]any {
	var v any = map[string]any(s)
	for _, key := range path {
		switch key := key.(type) {
		case string:
			v = v.(map[string]any)[key]
		case int:
			v = v.([]any)[key]
		}
	}
	return v.(map[string]any)
}

// material returns the material of a statement with a name.
func (s statement) material(name string) map[string]any {
	for _, m := range s.at("predicate", "buildDefinition")["resolvedDependencies"].([]any) {
		if m := m.(map[string]any); m["name"] == name {
			return m
		}
	}
	return nil
}

// A statement beside a wheel that does not belong to it, or that cannot be read, is damage: exit
// code 4, with the reason.
func TestStatementThatDoesNotFit(t *testing.T) {
	t.Parallel()
	path, m, text := wheeltest.Built(t, t.TempDir(), wheeltest.Options{})
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const other = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for name, c := range map[string]struct {
		change func(s statement)
		raw    string
		want   string
	}{
		"as built":          {func(statement) {}, "", ""},
		"an unknown field":  {func(s statement) { s["more"] = 1; s.at("predicate")["more"] = 1 }, "", ""},
		"another file":      {func(s statement) { s.at("subject", 0)["name"] = "other.whl" }, "", "it is about another file"},
		"another digest":    {func(s statement) { s.at("subject", 0, "digest")["sha256"] = other }, "", "for sha256 " + other},
		"two files":         {func(s statement) { s["subject"] = append(s["subject"].([]any), s["subject"].([]any)[0]) }, "", "it is about another file"},
		"no file":           {func(s statement) { s["subject"] = []any{} }, "", "subject"},
		"another predicate": {func(s statement) { s["predicateType"] = "https://example.org/x" }, "", "the predicate is https://example.org/x"},
		"another kind":      {func(s statement) { s["_type"] = "x" }, "", "type"},
		"other sources":     {func(s statement) { s.material("source")["digest"] = map[string]any{"sha256": other} }, "", "the sources have sha256 " + other},
		"no sources":        {func(s statement) { s.material("source")["name"] = "x" }, "", "the sources have sha256 nothing"},
		"another base":      {func(s statement) { s.material("base")["digest"] = map[string]any{"sha256": other} }, "", "the base has sha256 " + other},
		"no build":          {func(s statement) { delete(s.at("predicate"), "buildDefinition") }, "", "build"},
		"not JSON":          {nil, "hello", "cannot be read"},
		"empty":             {nil, "", "cannot be read"},
		"a list":            {nil, "[]", "cannot be read"},
		"null":              {nil, "null", ""},
	} {
		dir := t.TempDir()
		file := filepath.Join(dir, m.Name)
		beside := []byte(c.raw)
		if c.change != nil {
			var s statement
			if err := json.Unmarshal(text, &s); err != nil {
				t.Fatal(err)
			}
			c.change(s)
			if beside, err = json.Marshal(s); err != nil {
				t.Fatal(err)
			}
		}
		for path, data := range map[string][]byte{file: data, file + wheel.ProvenanceSuffix: beside} {
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		v, err := wheel.Verify(t.Context(), file)
		if err != nil {
			t.Fatal(err)
		}
		err = v.Err()
		if name == "null" {
			if err == nil || fault.ExitCode(err) != 4 {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || fault.ExitCode(err) != 4) {
			t.Errorf("%s: %v, exit code %d; want %s", name, err, fault.ExitCode(err), c.want)
		}
	}
}

// What a policy asks of a statement is there, or the statement is refused.
func TestReadProvenanceRefuses(t *testing.T) {
	t.Parallel()
	_, _, text := wheeltest.Built(t, t.TempDir(), wheeltest.Options{})
	for name, c := range map[string]struct {
		change func(s statement)
		want   string
	}{
		"two files":       {func(s statement) { s["subject"] = append(s["subject"].([]any), s["subject"].([]any)[0]) }, "has 2 subjects"},
		"no end":          {func(s statement) { delete(s.at("predicate", "runDetails", "metadata"), "finishedOn") }, "missing end time"},
		"no version":      {func(s statement) { s.at("subject", 0)["name"] = "deepspeed" }, "or version of the build"},
		"two sources":     {func(s statement) { s.material("base")["name"] = "source" }, "has 2 sources"},
		"no sources":      {func(s statement) { s.material("source")["name"] = "x" }, "has 0 sources"},
		"an absurd end":   {func(s statement) { s.at("predicate", "runDetails", "metadata")["finishedOn"] = "99999-01-01T00:00:00Z" }, ""},
		"a number as end": {func(s statement) { s.at("predicate", "runDetails", "metadata")["finishedOn"] = 7 }, ""},
	} {
		var s statement
		if err := json.Unmarshal(text, &s); err != nil {
			t.Fatal(err)
		}
		c.change(s)
		changed, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := wheel.ReadProvenance(changed); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

// FuzzReadProvenance: whatever lies beside a wheel is read or refused.
func FuzzReadProvenance(f *testing.F) {
	_, _, text := wheeltest.Built(f, f.TempDir(), wheeltest.Options{})
	f.Add(text)
	for _, seed := range []string{"", "{}", `{"_type":"https://in-toto.io/Statement/v1","subject":[{"name":"a-1","digest":{"sha256":"x"}}],"predicateType":"https://slsa.dev/provenance/v1","predicate":{}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if got, err := wheel.ReadProvenance(text); err == nil && (got.Name == "" || got.Source == "" && got.Finished.IsZero()) {
			t.Errorf("%+v is read", got)
		}
	})
}

// The facts of a build are whole, or refused.
func TestParseBuild(t *testing.T) {
	t.Parallel()
	b, err := wheel.ParseBuild([]byte(`{"python": "3.11", "torch": "2.15.0", "cuda": "13.2", "packages": [{"purl": "pkg:pypi/torch@2.15.0", "file": "RECORD", "sha256": "aa"}]}`))
	if err != nil || b.Python != "3.11" || len(b.Packages) != 1 || b.Packages[0].SHA256 != "aa" {
		t.Errorf("%+v, %v", b, err)
	}
	for text, want := range map[string]string{
		"": "build facts: ", "[]": "build facts: ", `{"python": "3.11"}`: "build facts: torch or python is missing", `{"torch": "2.15.0"}`: "build facts: torch or python is missing", `{"python": 3.11}`: "build facts: ",
	} {
		if _, err := wheel.ParseBuild([]byte(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A wheel that needs a newer glibc than a platform has names the functions that need it.
func TestNamesOfNewestSymbols(t *testing.T) {
	t.Parallel()
	path, _, _ := wheeltest.Built(t, t.TempDir(), wheeltest.Options{Ops: []wheeltest.Op{{Name: "cpu_adam", Dir: "adam", Imports: []string{"memcpy", "getentropy", "gettid", "reallocarray", "statx", "fcntl64"}}}})
	c, err := wheel.Inspect(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.NameNewest(path, "2.39"); err != nil || len(c.Extensions) != 1 || len(c.Extensions[0].Newest) != 0 {
		t.Errorf("for glibc 2.39: %v, %v", c.Extensions[0].Newest, err)
	}
	if err := c.NameNewest(path, "2.17"); err != nil {
		t.Fatal(err)
	}
	newest := c.Extensions[0].Newest
	if len(newest) == 0 || len(newest) > 5 || !strings.HasPrefix(newest[0], "gettid@GLIBC_2.30") {
		t.Errorf("for glibc 2.17: %v", newest)
	}
	if err := c.NameNewest(filepath.Join(t.TempDir(), "none.whl"), "2.17"); err == nil {
		t.Error("a wheel that is not there has symbols")
	}
}
