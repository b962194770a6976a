package wheel

import (
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/dsbuild/dsbuild/internal/fault"
)

const metadata = `Metadata-Version: 2.1
Name: deepspeed
Version: 0.19.8+torch2.15.cu132.v3
Requires-Python: >=3.8,
        <3.15
Requires-Dist: einops
Requires-Dist: numpy>=1.21
Requires-Dist: torch<2.16,>=2.15
requires-dist: clang-format==18.1.3; extra == "dev"

Requires-Dist: not-this: it is the description
`

// readMetadata reads the METADATA of the wheel at file.
func readMetadata(file string) (Metadata, error) {
	a, err := Open(file)
	if err != nil {
		return Metadata{}, err
	}
	defer a.Close()
	return a.Metadata()
}

func TestReadMetadata(t *testing.T) {
	// Python's e-mail parser takes all three ends of a line.
	for _, end := range []string{"\n", "\r\n", "\r"} {
		m, err := readMetadata(write(t, name, [2]string{distInfo + "METADATA", strings.ReplaceAll(metadata, "\n", end)}))
		want := Metadata{
			Name: "deepspeed", Version: "0.19.8+torch2.15.cu132.v3", RequiresPython: ">=3.8, <3.15",
			RequiresDist: []string{"einops", "numpy>=1.21", "torch<2.16,>=2.15", `clang-format==18.1.3; extra == "dev"`},
		}
		if err != nil || !reflect.DeepEqual(m, want) {
			t.Errorf("lines end with %q: %+v, %v", end, m, err)
		}
	}
}

func TestReadMetadataRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                                 `"" is not a valid name`,
		"Name: deepspeed\n":                `"" is not a valid version`,
		"Name: -\nVersion: 1\n":            `"-" is not a valid name`,
		"Name: a\nVersion: $(id)\n":        `"$(id)" is not a valid version`,
		"Name: a\nVersion: \x1b[1m\n":      "line 2: Version: contains a control character",
		"Name: a\nVersion: \xff\n":         "line 2: Version: is not UTF-8",
		"Name: a\nVersion: 1\n\n\xe9\n":    "not UTF-8, which pip rejects",
		"Name: a\nName: b\nVersion: 1\n":   "line 2: Name: occurs twice",
		"Name: a\nno field\nVersion: 1\n":  "line 2 is not a header field",
		" Name: a\nVersion: 1\n":           "line 1 is not a header field",
		"Name: a\n b\nNäme: a\n":           "line 3 is not a header field",
		": a\n":                            "line 1 is not a header field",
		"Requires-Dist: $(id)\n":           `"$(id)" is not a requirement`,
		"Requires-Dist: \n":                `"" is not a requirement`,
		"Requires-Dist: a b\n":             `"a b" is not a requirement`,
		"Requires-Dist: a[b\n":             `"a[b" is not a requirement`,
		"Requires-Dist: a@https://b c\n":   `"a@https://b c" is not a requirement`,
		"Requires-Dist: a[]b\n":            `"a[]b" is not a requirement`,
		"Requires-Dist: a>\x00\n":          "is not a requirement",
		"Name: torch\nVersion: 0.19.8\n":   "METADATA is for torch 0.19.8, but the directory is deepspeed-0.19.8",
		"Name: DeepSpeed\nVersion: 0.19\n": "METADATA is for DeepSpeed 0.19, but the directory is deepspeed-0.19.8",
	} {
		_, err := readMetadata(write(t, name, [2]string{distInfo + "METADATA", text}))
		if fault.ExitCode(err) != fault.Wheel || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// What is no condition on an extra alone counts for everybody.
func TestOnlyWithExtra(t *testing.T) {
	for r, want := range map[string]bool{
		`torch; extra == "x"`: true, `torch>=1; extra=='all.of-it'`: true, `torch; sys_platform == "linux" and extra == "x"`: true,
		`torch; (extra == "x") and python_version < "3"`: true,

		`torch`: false, `torch; python_version > "3"`: false, `torch; extra == ""`: false, `torch; extra != "x"`: false,
		`torch; extra == "x" or python_version > "3"`: false, `torch; python_version > "3"or extra == "x"`: false,
		`torch @ https://example.org/;extra == "x"`:          false,
		`torch @ https://example.org/ ; extra == "x"`:        true,
		`torch; platform_version == "and extra == 'x' and "`: false,
	} {
		if got := OnlyWithExtra(r); got != want {
			t.Errorf("%s: %v", r, got)
		}
	}
}

func TestDirectReference(t *testing.T) {
	for value, want := range map[string]string{
		"torch@https://example.org/t.whl":                  "torch @ https://example.org/t.whl",
		"torch [a] @ https://example.org/t@1.whl ; x=='1'": "torch[a] @ https://example.org/t@1.whl ; x=='1'",
		"torch @ https://example.org/t.whl;x=='1'":         "torch @ https://example.org/t.whl;x=='1'",
	} {
		got, err := parseRequirement(value)
		if again, err := parseRequirement(got); got != want || again != want || err != nil {
			t.Errorf("%s: %q, again %q, %v", value, got, again, err)
		}
		if err != nil || requirementName(got) != "torch" {
			t.Errorf("%q is of %q, %v", got, requirementName(got), err)
		}
	}
}

// Names and versions are compared as the specifications say, not as strings.
func TestNamesAgree(t *testing.T) {
	const inside = "Name: Deep.Speed\nVersion: 1.0-1+Ubuntu-1\n"
	file := write(t, "deep_speed-1.0.post1+ubuntu.1-py3-none-any.whl", [2]string{"Deep_Speed-1.0_1+ubuntu_1.dist-info/METADATA", inside})
	if m, err := readMetadata(file); err != nil || m.Name != "Deep.Speed" {
		t.Errorf("%+v, %v", m, err)
	}
}

const wheelFile = `Wheel-Version: 1.0
Generator: setuptools (80.9.0)
Root-Is-Purelib: false
Tag: cp311-cp311-manylinux_2_17_x86_64
Tag: cp311-cp311-manylinux2014_x86_64
Build: 1
`

func TestParseWheelFile(t *testing.T) {
	w, err := parseWheelFile([]byte(wheelFile))
	want := WheelFile{
		Version: "1.0", Generator: "setuptools (80.9.0)", Build: "1",
		Tags: []string{"cp311-cp311-manylinux_2_17_x86_64", "cp311-cp311-manylinux2014_x86_64"},
	}
	if err != nil || !reflect.DeepEqual(w, want) {
		t.Errorf("%+v, %v", w, err)
	}
	if w, err := parseWheelFile([]byte("Wheel-Version: 1.0\nGenerator: meson\nGenerator: delocate\n")); err != nil || w.Generator != "meson" {
		t.Errorf("%+v, %v", w, err)
	}
	if w, err := parseWheelFile([]byte("Wheel-Version: 1.9\nRoot-Is-Purelib: TRUE\n")); err != nil || !w.RootIsPurelib {
		t.Errorf("%+v, %v", w, err)
	}
	bomb := strings.Repeat("a.", 100) + "a"
	for text, want := range map[string]string{
		"":                                     `"" is not a Wheel-Version`,
		"Wheel-Version: 2.0\n":                 "unsupported format 2.0; only format 1 is supported",
		"Wheel-Version: 1.0\nTag: any\n":       `line 2: Tag: "any" is not a tag`,
		"Wheel-Version: 1.0\nTag: a-b-c-d\n":   `"a-b-c-d" is not a tag`,
		"Tag: " + bomb + "-" + bomb + "-any\n": "stands for more than 4096 tags",
		strings.Repeat("Tag: a-b-c\n", 5000):   "more than 4096 tags",
		"Build: 1\nBuild: 2\n":                 "line 2: Build: occurs twice",
	} {
		if _, err := parseWheelFile([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: %v, want %q", text, err, want)
		}
	}
}

func TestParseFileName(t *testing.T) {
	for file, want := range map[string]FileName{
		name: {"deepspeed", "0.19.8+torch2.15.cu132.v3", "", []string{"cp311-cp311-linux_x86_64"}},
		"six-1!1.17.0-1a-py2.py3-NONE-any.whl": {
			"six", "1!1.17.0", "1a", []string{"py2-none-any", "py3-none-any"},
		},
	} {
		if f, err := ParseFileName(file); err != nil || !reflect.DeepEqual(f, want) {
			t.Errorf("%s: %+v, %v", file, f, err)
		}
	}
	for file, want := range map[string]string{
		"x.whl":                                           "invalid wheel file name: want NAME-VERSION[-BUILD]-PYTHON-ABI-PLATFORM.whl",
		"a-1-py3-none-any.zip":                            "invalid wheel file name: want",
		"a-1-2-3-py3-none-any.whl":                        "invalid wheel file name: want",
		"a-1-x1-py3-none-any.whl":                         `build tag "x1"`,
		"a%-1-py3-none-any.whl":                           `"a%", version "1"`,
		"a-1%2Bb-py3-none-any.whl":                        `"a", version "1%2Bb"`,
		"a-1-py3-none-.whl":                               `"py3-none-" is not a tag`,
		"--py3-none-any.whl":                              `"", version ""`,
		"a-1-py3-none-an\x1by.whl":                        "is not a tag",
		"a-1-" + strings.Repeat("a.", 5000) + "a-b-c.whl": "more than 4096 tags",
	} {
		if _, err := ParseFileName(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: %v, want %q", file, err, want)
		}
	}
}

func TestCompareTags(t *testing.T) {
	w, err := parseWheelFile([]byte(wheelFile))
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string][]string{
		"a-1-1-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl": nil,
		"a-1-cp311-cp311-manylinux2014_x86_64.manylinux_2_28_x86_64.whl": {
			"the file name has tag cp311-cp311-manylinux_2_28_x86_64, but WHEEL does not",
			"WHEEL has tag cp311-cp311-manylinux_2_17_x86_64, but the file name does not",
			`the file name has build "", but WHEEL has "1"`,
		},
	} {
		f, err := ParseFileName(file)
		if err != nil {
			t.Fatal(err)
		}
		if got := compareTags(f, w); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %q", file, got)
		}
	}
	// The specification leaves Build out where a wheel is built without a number.
	w.Build = ""
	f, err := ParseFileName("a-1-2-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl")
	if got := compareTags(f, w); len(got) > 0 || err != nil {
		t.Errorf("a number given later: %q, %v", got, err)
	}
}

// Whatever METADATA and WHEEL hold: no panic, and only what names, versions
// and requirements may hold comes out.
func FuzzMetadata(f *testing.F) {
	for _, s := range []string{
		metadata, wheelFile, "Name: a\r\nVersion: 1\rRequires-Dist: a[b,c] (>=1) ; x\n y", "Name: a\nVersion: 1!2.0.post1.dev3+l_1\n",
		"Requires-Dist: a @ https://example.org/a.whl ; python_version < '3'\n", "Tag: a.b-c.d-e.f\nWheel-Version: 1.0\n", ":\n", "\n", " a:b",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if w, err := parseWheelFile(text); err == nil {
			compareTags(FileName{Tags: []string{"cp311-cp311-linux_x86_64"}}, w)
			if len(w.Tags) > maxTags {
				t.Errorf("%d tags", len(w.Tags))
			}
		}
		m, err := ParseMetadata(text)
		if err != nil {
			return
		}
		for _, s := range append([]string{m.Name, m.Version, m.RequiresPython}, m.RequiresDist...) {
			if !utf8.ValidString(s) || strings.ContainsFunc(s, isControl) {
				t.Errorf("%q", s)
			}
		}
		for _, r := range m.RequiresDist {
			if again, err := parseRequirement(r); again != r || err != nil || requirementName(r) == "" {
				t.Errorf("%q of %q, again %q, %v", r, requirementName(r), again, err)
			}
			OnlyWithExtra(r)
		}
		if !sameName(m.Name, m.Name) || !sameVersion(m.Version, strings.ReplaceAll(m.Version, "-", "_")) {
			t.Errorf("%s %s is not itself", m.Name, m.Version)
		}
	})
}
