package signing_test

import (
	"bytes"
	"crypto/md5"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/diagnostic"
	"github.com/dsbuild/dsbuild/internal/testkit/signingtest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/signing"
)

// askJudge runs a Python program after the judgement of nodes, with a value as JSON on its input.
func askJudge(t *testing.T, program string, in, out any) {
	t.Helper()
	request, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	const head = `
import base64, csv, hashlib, json, os, re, stat, struct, subprocess, sys, time
class Failed(Exception):
    def __init__(self, why, advice=""):
        Exception.__init__(self, why)
`
	cmd := exec.Command("python3", "-c", head+signing.JudgeSource()+program)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(request), os.Stderr
	said, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(said, out); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
}

// This machine and a node give one verdict on the version of a wheel and on where it was built from; on
// versions it is the order of Python's packaging.
func TestFactsAreJudgedAlikeOnNodes(t *testing.T) {
	t.Parallel()
	_, m, text := wheeltest.Built(t, t.TempDir(), wheeltest.Options{})
	const seed = 3
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	type facts struct{ Version, Minimum, Source, Pattern string }
	var all []facts
	for range 600 {
		n := func() string { return pick("0", "1", "9", "10", "19", "123456789") }
		f := facts{Version: n(), Minimum: n()}
		for range r.IntN(4) {
			f.Version += "." + n()
		}
		for range r.IntN(4) {
			f.Minimum += "." + pick("0", "1", "9", "10", "19", "123456")
		}
		f.Version += pick("", "", "", "rc1", "a2", "b3", ".dev4", ".post1", ".post2.dev1", "rc1.post1", ".post3")
		f.Minimum = strings.ReplaceAll(f.Minimum, "123456789", "123456")
		f.Source, f.Pattern = pick("git+https://a/b@v1", "pkg:pypi/deepspeed@0.19.8", "a.b", "aXb", "", "*", "a\nb", "été", "a+b"), ""
		for range 1 + r.IntN(4) {
			f.Pattern += pick("*", "a", ".", "b", "git+", "https://", "pkg:pypi/deepspeed@", "0.19", "+")
		}
		all = append(all, f)
	}
	var node []struct {
		Older, Source, Order bool
	}
	askJudge(t, `
try:
    from packaging.version import Version
except ImportError:
    from pip._vendor.packaging.version import Version
out = []
for f in json.load(sys.stdin):
    out.append({"older": release(f["Version"]) < release(f["Minimum"]), "source": matches(f["Pattern"], f["Source"]), "order": Version(f["Version"]) < Version(f["Minimum"])})
print(json.dumps(out))
`, all, &node)
	older, matched := 0, 0
	for i, f := range all {
		// The statement of the wheel says another version and another source.
		name := strings.Replace(m.Name, m.Version, f.Version, 1)
		source, err := json.Marshal(f.Source)
		if err != nil {
			t.Fatal(err)
		}
		statement := strings.Replace(string(text), `"`+m.Name+`"`, `"`+name+`"`, 1)
		statement = strings.Replace(statement, `"`+sourceOf(t, string(text))+`"`, string(source), 1)
		p := &signing.Policy{Minimum: f.Minimum, Sources: []string{f.Pattern}}
		_, err = p.Check(signing.Signed{Name: name, Statement: statement}, m.SHA256, time.Now())
		said := fmt.Sprint(err)
		if !strings.Contains(said, "0 of 1 trusted signatures") {
			t.Fatalf("%+v: %v", f, err)
		}
		if got := strings.Contains(said, "is older than"); got != node[i].Older || got != node[i].Order {
			t.Errorf("%s older than %s: %v here, %v on a node, %v by packaging", f.Version, f.Minimum, got, node[i].Older, node[i].Order)
		}
		if got := !strings.Contains(said, "none of the sources"); got != node[i].Source {
			t.Errorf("%q matches %q: %v here, %v on a node", f.Source, f.Pattern, got, node[i].Source)
		}
		if node[i].Older {
			older++
		}
		if node[i].Source {
			matched++
		}
	}
	if older < 50 || older > 550 || matched < 20 {
		t.Errorf("%d older, %d match", older, matched)
	}
}

// sourceOf is the source that a statement names.
func sourceOf(t *testing.T, statement string) string {
	t.Helper()
	var s struct {
		Predicate struct {
			BuildDefinition struct {
				ResolvedDependencies []struct{ Name, URI string }
			}
		}
	}
	if err := json.Unmarshal([]byte(statement), &s); err != nil {
		t.Fatal(err)
	}
	for _, d := range s.Predicate.BuildDefinition.ResolvedDependencies {
		if d.Name == "source" {
			return d.URI
		}
	}
	t.Fatal("no source")
	return ""
}

// Statements in an odd form, each signed by a trusted key, get one verdict here and on nodes.
func TestOddStatementsAreJudgedAlikeOnNodes(t *testing.T) {
	t.Parallel()
	file, m, text := wheeltest.Built(t, t.TempDir(), wheeltest.Options{})
	k, statement := signingtest.NewKeys(t), string(text)
	policy := k.Policy(t, "signers: [{name: a, key: $a}]\nmax_age: 30d")
	finished := statement[strings.Index(statement, `"finishedOn": "`)+len(`"finishedOn": "`):][:len("2026-01-02T03:04:05Z")]
	replace := func(from, to string) string {
		t.Helper()
		out := strings.Replace(statement, from, to, 1)
		if out == statement {
			t.Fatalf("no %s", from)
		}
		return out
	}
	digest := `"sha256": "` + m.SHA256 + `"`
	odd := map[string]string{
		"as it is":                statement,
		"day 30 of February":      replace(finished, "2026-02-30T00:00:00Z"),
		"digest in upper case":    replace(digest, `"sha256": "`+strings.ToUpper(m.SHA256)+`"`),
		"an unknown key":          replace(`"subject":`, `"more": {"a": [1, null]}, "subject":`),
		"an escaped key":          replace(`"subject":`, `"\u0073ubject":`),
		"a byte order mark":       "\ufeff" + statement,
		"text after it":           statement + "{}",
		"spaces after it":         statement + " \n\t",
		"a comment":               "// signed\n" + statement,
		"a number as name":        replace(`"name": "`+m.Name+`"`, `"name": 1`),
		"a trailing comma":        replace(`"subject": [`, `"subject": [ ,`),
		"a control character":     replace(`"subject":`, "\"more\": \"a\x01b\", \"subject\":"),
		"a deep unknown key":      replace(`"subject":`, `"more": `+strings.Repeat("[", 200)+strings.Repeat("]", 200)+`, "subject":`),
		"a very deep unknown key": replace(`"subject":`, `"more": `+strings.Repeat("[", 50000)+strings.Repeat("]", 50000)+`, "subject":`),
		"a huge number":           replace(`"subject":`, `"more": 1e999999, "subject":`),
	}
	var cases []signingtest.Case
	for name, text := range odd {
		cases = append(cases, signingtest.Case{Name: name, Policy: policy, Signed: signing.Signed{Name: filepath.Base(file), Statement: text, Signatures: []string{k.Sign(t, "a", text)}}})
	}
	said := judgeOnNode(t, cases, m.SHA256, oldKeygen(t), "")
	for i, c := range cases {
		_, err := c.Policy.Check(c.Signed, m.SHA256, time.Now())
		if here, there := err == nil, said[i] == "own"; here != there {
			t.Errorf("%s: %v here, %q on a node", c.Name, err, said[i])
		}
	}
}

// A policy is limited by what it says: a time that cannot be counted is a mistake, not another time.
func TestAgesAndTimes(t *testing.T) {
	t.Parallel()
	k := signingtest.NewKeys(t)
	now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	parse := func(text string) (*signing.Policy, error) {
		return signing.ParsePolicy("policy.yaml", []byte(text), now)
	}
	head := "signers: [{name: a, key: " + k.Public("a") + "}]\n"
	for age, want := range map[string]time.Duration{"1h": time.Hour, "90d": 90 * 24 * time.Hour, "8w": 8 * 7 * 24 * time.Hour, "99999h": 99999 * time.Hour, "10000w": 10000 * 168 * time.Hour} {
		if p, err := parse(head + "max_age: " + age + "\n"); err != nil || p.MaxAge != want {
			t.Errorf("%s: %v, %v", age, p, err)
		}
	}
	for _, age := range []string{"0d", "-1d", "1m", "1.5d", "30", "d", "16000w", "31000w", "99999w", "100000h", "1d 2h"} {
		p, err := parse(head + "max_age: " + age + "\n")
		if err == nil || !strings.HasPrefix(err.Error(), "policy.yaml:2:10: max_age must be hours, days or weeks") {
			t.Errorf("%s: %+v, %v", age, p, err)
		}
	}
	for text, want := range map[string]string{
		"from: 2026-12-31, until: 2026-12-31":                "is never valid: until is not after from",
		"from: 2026-02-30":                                   "from must be a day",
		"until: 2026-1-5":                                    "until must be a day",
		"until: 1969-12-31":                                  "until must be a day",
		"until: tomorrow":                                    "until must be a day",
		"until: 2026-11-01":                                  "the policy trusts nobody now (a is expired on 2026-11-01T00:00:00Z)",
		"from: 2026-11-01T00:00:01Z":                         "the policy trusts nobody now (a is not valid before 2026-11-01T00:00:01Z)",
		"from: 2026-11-01, until: 2026-11-01T01:00:00+01:00": "is never valid",
		"from: 2026-11-01, until: 2026-11-01T00:00:01Z":      "",
		"from: 2026-11-01T01:00:00+01:00, until: 2026-11-02": "",
	} {
		_, err := parse("signers: [{name: a, key: " + k.Public("a") + ", " + text + "}]\n")
		var e *diagnostic.Error
		if want == "" && err != nil || want != "" && (!errors.As(err, &e) || !strings.Contains(err.Error(), want) || e.Problems[0].Position.Line != 1) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// A stored wheel's files are compared by the digest of its RECORD, whichever of the three that is. Other
// digests, and files that are not there, count as changed. An installer may change a script's first line.
func TestFilesOfAStoredWheel(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	module, script := file("module.py", "x = 1\n"), file("script", "#!/opt/env/bin/python\nrun()\n")
	digest := func(algorithm, text string) string {
		sum := map[string]func() []byte{
			"sha256": func() []byte { s := sha256.Sum256([]byte(text)); return s[:] },
			"sha384": func() []byte { s := sha512.Sum384([]byte(text)); return s[:] },
			"sha512": func() []byte { s := sha512.Sum512([]byte(text)); return s[:] },
			"md5":    func() []byte { s := md5.Sum([]byte(text)); return s[:] }, //nolint:gosec // a digest that is refused
		}[algorithm]()
		return algorithm + "=" + base64.RawURLEncoding.EncodeToString(sum)
	}
	type question struct {
		Path, Digest string
		Script       bool
	}
	var all []question
	var want []bool
	ask := func(same bool, path, digest string, script bool) {
		all, want = append(all, question{path, digest, script}), append(want, same)
	}
	for _, algorithm := range []string{"sha256", "sha384", "sha512"} {
		ask(true, module, digest(algorithm, "x = 1\n"), false)
		ask(false, module, digest(algorithm, "x = 2\n"), false)
		ask(false, filepath.Join(dir, "gone.py"), digest(algorithm, "x = 1\n"), false)
		ask(true, script, digest(algorithm, "#!python\nrun()\n"), true)
		ask(false, script, digest(algorithm, "#!python\nrun()\n"), false)
		ask(false, script, digest(algorithm, "#!python\nrun(2)\n"), true)
	}
	ask(false, module, digest("md5", "x = 1\n"), false)
	ask(false, module, "sha3_256="+strings.TrimPrefix(digest("sha256", "x = 1\n"), "sha256="), false)
	ask(false, module, "", false)
	ask(false, module, "sha256=", false)
	var got []bool
	askJudge(t, `
from binascii import b2a_base64
HASHES = ("sha256", "sha384", "sha512")
def written(digest):
    return b2a_base64(digest, newline=False).translate(bytes.maketrans(b"+/", b"-_")).rstrip(b"=").decode()
print(json.dumps([has_digest(q["Path"], q["Digest"], q["Script"]) for q in json.load(sys.stdin)]))
`, all, &got)
	for i := range want {
		if i >= len(got) || got[i] != want[i] {
			t.Errorf("%+v: want %v, got %v", all[i], want[i], got)
		}
	}
}
