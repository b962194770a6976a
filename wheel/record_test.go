package wheel

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

const record = `pkg/__init__.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0
"pkg/a, ""b"".py",sha512=x,12
pkg/no size,sha384=y,
pkg-1.0.dist-info/RECORD,,
`

func recordEntries() []RecordEntry {
	return []RecordEntry{
		{"pkg/__init__.py", "sha256", "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU", 0},
		{`pkg/a, "b".py`, "sha512", "x", 12},
		{"pkg/no size", "sha384", "y", -1},
		{"pkg-1.0.dist-info/RECORD", "", "", -1},
	}
}

func TestRecord(t *testing.T) {
	if got := FormatRecord(recordEntries()); string(got) != record {
		t.Errorf("%s", got)
	}
	for _, end := range []string{"\n", "\r\n"} {
		if got, err := ParseRecord(strings.NewReader(strings.ReplaceAll(record, "\n", end))); err != nil || !reflect.DeepEqual(got, recordEntries()) {
			t.Errorf("%+v, %v", got, err)
		}
	}
}

// Installers read and write RECORD with Python's csv module.
func TestPythonReadsRecord(t *testing.T) {
	const script = `
import csv, io, sys
rows = list(csv.reader(io.StringIO(sys.stdin.read(), newline="")))
out = io.StringIO(newline="")
csv.writer(out, delimiter=",", quotechar='"', lineterminator="\n").writerows(rows)
sys.stdout.write(out.getvalue())
`
	cmd := exec.Command(tool(t, "python3"), "-c", script)
	cmd.Stdin = bytes.NewReader(FormatRecord(recordEntries()))
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != record {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestParseRecordRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"a,b\n":                  "line 1: wrong number of fields",
		"a,,\nb,,,\n":            "line 2: wrong number of fields",
		"a,,\nb,sha256,1\n":      `RECORD: line 2: "sha256" is not a hash`,
		"a,sha256=,1\n":          `"sha256=" is not a hash`,
		"a,=x,1\n":               `"=x" is not a hash`,
		"a,,-1\n":                `"-1" is not a size`,
		"a,,+1\n":                `"+1" is not a size`,
		"a,,1e3\n":               `"1e3" is not a size`,
		"a,,9223372036854775808": `"9223372036854775808" is not a size`,
		"\"a\n\",,\n":            "line 1: control character",
		"a,sha256=x\x1b[1m,\n":   "control character",
		"a\rb,,\n":               "control character",
		"\"a,,\n":                `extraneous or missing " in quoted-field`,
		"a\"b,,\n":               `bare " in non-quoted-field`,
		"\"" + strings.Repeat("a", maxRecord) + "\",,\n": "larger than 33554432 bytes",
		strings.Repeat("a,,\n", maxMembers+1):            "more than 200000 lines",
	} {
		if _, err := ParseRecord(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: %v, want %q", text, err, want)
		}
	}
}

// Every way in which RECORD can be wrong, each named.
func TestVerifyRecord(t *testing.T) {
	right := sealed(code, stored)
	last := len(right) - 1
	digest := func(algorithm string) string {
		h, err := newHash(algorithm)
		if err != nil {
			t.Fatal(err)
		}
		h.Write([]byte(code.content))
		return algorithm + "=" + RecordDigest(h.Sum(nil))
	}
	code256 := recorded(code.name, code.content)
	edit := func(old, new string) []forged {
		if !strings.Contains(right[last].content, old) {
			t.Fatalf("%q is not in RECORD", old)
		}
		return append(slices.Clone(right[:last]), with(right[last], func(m *forged) { m.content = strings.Replace(m.content, old, new, 1) }))
	}
	const self = smallInfo + "RECORD"
	line := string(FormatRecord([]RecordEntry{code256}))
	for what, c := range map[string]struct {
		files []forged
		want  []string
	}{
		"right":              {right, nil},
		"SHA-384":            {edit("sha256="+code256.Digest, digest("sha384")), nil},
		"SHA-512":            {edit("sha256="+code256.Digest, digest("sha512")), nil},
		"no size":            {edit(",15\n", ",\n"), nil},
		"signatures":         {append(slices.Clone(right), forged{name: self + ".jws"}, forged{name: self + ".p7s", content: "x"}), nil},
		"signature listed":   {append(edit(line, line+self+".jws,,\n"), forged{name: self + ".jws"}), nil},
		"no RECORD":          {right[:last], []string{self + ": not in the wheel"}},
		"no CSV":             {edit(line, "a\n"), []string{"RECORD: record on line 1: wrong number of fields"}},
		"not listed":         {edit(line, ""), []string{"pkg/code.py: not listed in RECORD"}},
		"not listing itself": {edit(self+",,\n", ""), []string{self + ": not listed in RECORD"}},
		"signature elsewhere": {
			append(slices.Clone(right), forged{name: "pkg/RECORD.jws"}), []string{"pkg/RECORD.jws: not listed in RECORD"},
		},
		"listed, not there": {edit(line, line+"pkg/gone.py,sha256=x,1\n"), []string{"pkg/gone.py: listed in RECORD, but not in the wheel"}},
		"content changed": {
			append([]forged{with(code, func(m *forged) { m.content = "print('hullo')\n" })}, right[1:]...),
			[]string{"pkg/code.py: its sha256 is " + recorded("", "print('hullo')\n").Digest + ", but RECORD says " + code256.Digest},
		},
		"size changed": {edit(",15\n", ",16\n"), []string{"pkg/code.py: has 15 bytes, but RECORD says 16"}},
		"weak":         {edit("sha256", "sha1"), []string{"pkg/code.py: RECORD uses the weak hash sha1"}},
		"weak, too":    {edit("sha256", "md5"), []string{"pkg/code.py: RECORD uses the weak hash md5"}},
		"unknown":      {edit("sha256", "crc32"), []string{`pkg/code.py: RECORD uses the unknown hash "crc32"`}},
		"no hash":      {edit(",sha256="+code256.Digest, ","), []string{"pkg/code.py: RECORD has no hash of it"}},
		"twice":        {edit(line, line+line), []string{"pkg/code.py: listed twice in RECORD"}},
		"itself":       {edit(self+",,", self+",sha256=x,"), []string{self + ": contains its own hash, which is impossible"}},
		"outside": {edit(line, line+"../../evil,sha256=x,1\n/evil,,\n"), []string{
			`RECORD lists "../../evil", which leaves the wheel`, `RECORD lists "/evil", which is absolute`,
		}},
		"several, in order": {edit(line+"pkg/stored,sha256="+recorded("", "data").Digest+",4", "pkg/gone,,\npkg/stored,,5"), []string{
			"pkg/code.py: not listed in RECORD", "pkg/gone: listed in RECORD, but not in the wheel", "pkg/stored: has 4 bytes, but RECORD says 5",
		}},
	} {
		a, err := Open(save(t, smallName, forge(t, c.files, nil)))
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if got, err := a.VerifyRecord(t.Context()); !slices.Equal(got, c.want) || err != nil {
			t.Errorf("%s: %q, %v, want %q", what, got, err, c.want)
		}
		a.Close()
	}
}

func TestVerifyRecordStops(t *testing.T) {
	a, err := Open(save(t, smallName, honestWheels(t)["plain"]))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("interrupted")
	cancel(stop)
	if found, err := a.VerifyRecord(ctx); !errors.Is(err, stop) {
		t.Errorf("%q, %v", found, err)
	}
}

// A wheel packed by hand and listed by us is one that pip installs.
func TestPipTakesOurRecord(t *testing.T) {
	python := tool(t, "python3")
	if err := exec.Command(python, "-m", "pip", "--version").Run(); err != nil {
		t.Skip("this Python has no pip")
	}
	path, dir := save(t, smallName, honestWheels(t)["plain"]), t.TempDir()
	out, err := exec.Command(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", "--target", dir, path).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got, err := os.ReadFile(filepath.Join(dir, code.name)); err != nil || string(got) != code.content {
		t.Errorf("%q, %v", got, err)
	}
}

// Whatever RECORD holds, what is read is written as what is read again.
func FuzzRecord(f *testing.F) {
	for _, s := range []string{record, "", "a,,", "\"a\n\",,", "a,b,c", "\xef\xbb\xbfa,,\n", "a,sha256=x=,007\r\n", "\n\n,,\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		entries, err := ParseRecord(bytes.NewReader(text))
		if err != nil {
			return
		}
		again, err := ParseRecord(bytes.NewReader(FormatRecord(entries)))
		if err != nil || !slices.Equal(again, entries) {
			t.Errorf("%+v written and read: %+v, %v", entries, again, err)
		}
	})
}
