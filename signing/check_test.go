package signing_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/signingtest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/signing"
	"github.com/dsbuild/dsbuild/wheel"
)

// onNode runs the judgement of nodes in one Python: it prints for each case "" or why it is refused.
const onNode = `
import base64, csv, hashlib, json, os, re, stat, struct, subprocess, sys, time
class Failed(Exception):
    def __init__(self, why, advice=""):
        Exception.__init__(self, why)
REQUEST = json.load(sys.stdin)
exec(REQUEST["source"])
said = []
for case in REQUEST["cases"]:
    try:
        if not case["policy"]["signers"]:
            refuse("it trusts nobody")
        answer = judge_wheel([case["policy"]], case["signed"], case["signed"]["name"], REQUEST["sha256"], REQUEST["folder"], REQUEST["verifier"])
        said.append("own" if answer["own"] else answer["verifier"])
    except Failed as e:
        said.append(str(e))
print(json.dumps(said))
`

// judgeOnNode asks a node's program about cases; path is where it finds programs, verifier the program
// that the driver has sent for bundles.
func judgeOnNode(t *testing.T, cases []signingtest.Case, sum, path, verifier string) []string {
	t.Helper()
	type entry struct {
		Policy any            `json:"policy"`
		Signed signing.Signed `json:"signed"`
	}
	request := map[string]any{"source": signing.JudgeSource(), "sha256": sum, "folder": t.TempDir(), "verifier": nil}
	if verifier != "" {
		digest, _, err := wheel.HashFile(verifier)
		if err != nil {
			t.Fatal(err)
		}
		request["verifier"] = map[string]string{"file": verifier, "sha256": digest}
	}
	var all []entry
	for _, c := range cases {
		all = append(all, entry{c.Policy.ForNodes(), c.Signed})
	}
	request["cases"] = all
	input, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, "-c", onNode)
	cmd.Env = append(os.Environ(), "PATH="+path)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(input), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	if err := json.Unmarshal(out, &said); err != nil || len(said) != len(cases) {
		t.Fatalf("%v: %s", err, out)
	}
	return said
}

// oldKeygen is a folder with the ssh-keygen of RHEL 8, as far as it speaks of -Y.
func oldKeygen(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "ssh-keygen"), []byte("#!/bin/sh\necho 'unknown option -- Y' >&2\necho 'usage: ssh-keygen [-q] [-b bits]' >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir + ":" + os.Getenv("PATH")
}

func TestThreeJudgesAgree(t *testing.T) {
	t.Parallel()
	file, m, statement := wheeltest.Built(t, t.TempDir(), wheeltest.Options{})
	k := signingtest.NewKeys(t)
	good := signingtest.Accepted(t, k, filepath.Base(file), string(statement))
	bad := signingtest.Attacks(t, k, filepath.Base(file), string(statement))
	if len(bad) < 40 {
		t.Errorf("%d attacks", len(bad))
	}
	all := append(good, bad...)
	modern, old := judgeOnNode(t, all, m.SHA256, os.Getenv("PATH"), ""), judgeOnNode(t, all, m.SHA256, oldKeygen(t), "")
	for i, c := range all {
		_, err := c.Policy.Check(c.Signed, m.SHA256, time.Now())
		here := ""
		if err != nil {
			here = err.Error()
		}
		for judge, said := range map[string]string{"this machine": here, "a node": modern[i], "a node of RHEL 8": strings.TrimPrefix(old[i], "own")} {
			if c.Want == "" && said != "" || !strings.Contains(said, c.Want) {
				t.Errorf("%s, judged by %s: %q, want %q", c.Name, judge, said, c.Want)
			}
		}
		if c.Want == "" && old[i] != "own" {
			t.Errorf("%s: an old ssh-keygen could judge it", c.Name)
		}
	}
}

// The bytes must be those of the wheel that was signed, whoever holds them.
func TestCheckComparesTheFile(t *testing.T) {
	t.Parallel()
	file, _, statement := wheeltest.Built(t, t.TempDir(), wheeltest.Options{})
	k := signingtest.NewKeys(t)
	c := signingtest.Accepted(t, k, filepath.Base(file), string(statement))[0]
	if _, err := c.Policy.Check(c.Signed, strings.Repeat("1", 64), time.Now()); err == nil || !strings.Contains(err.Error(), "but this file has 111") {
		t.Errorf("%v", err)
	}
}

type signer struct {
	t    *testing.T
	keys signingtest.Keys
	name string
}

func (s signer) Sign(message []byte, namespace string) ([]byte, error) {
	return []byte(signingtest.SignWith(s.t, s.keys[s.name], string(message), namespace)), nil
}

func TestSign(t *testing.T) {
	t.Parallel()
	file, m, statement := wheeltest.Built(t, t.TempDir(), wheeltest.Options{})
	k := signingtest.NewKeys(t)
	if _, err := signing.Sign(file, signer{t, k, "a"}, signing.Namespace); err == nil || !strings.Contains(err.Error(), "no statement beside it") {
		t.Errorf("%v", err)
	}
	if err := os.WriteFile(file+wheel.ProvenanceSuffix, statement, 0o644); err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, name := range []string{"a", "b", "a"} {
		path, err := signing.Sign(file, signer{t, k, name}, signing.Namespace)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	if files, err := wheel.SignatureFiles(file); err != nil || len(files) != 2 || paths[0] != paths[2] {
		t.Errorf("%q, %v", files, err)
	}
	// Stock ssh-keygen reads what dsbuild wrote.
	allowed := filepath.Join(t.TempDir(), "allowed_signers")
	if err := os.WriteFile(allowed, []byte("ci namespaces=\"dsbuild\" "+k.Public("a")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("ssh-keygen", "-Y", "verify", "-f", allowed, "-I", "ci", "-n", "dsbuild", "-s", paths[0])
	cmd.Stdin = bytes.NewReader(statement)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "Good \"dsbuild\" signature for ci") {
		t.Errorf("%v\n%s", err, out)
	}
	s, err := signing.ReadSigned(file)
	if err != nil {
		t.Fatal(err)
	}
	if names, err := k.Policy(t, "signers: [{name: a, key: $a}, {name: b, key: $b}]\nbuilders: 2").Check(s, m.SHA256, time.Now()); err != nil || len(names) != 2 {
		t.Errorf("%q, %v", names, err)
	}
	// A wheel that was built again has another statement: old signatures go.
	if err := os.WriteFile(file+wheel.ProvenanceSuffix, append(statement, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := signing.Sign(file, signer{t, k, "a"}, signing.Namespace); err != nil {
		t.Fatal(err)
	}
	if files, _ := wheel.SignatureFiles(file); len(files) != 1 {
		t.Errorf("stale signatures: %q", files)
	}
	// Another wheel under the name.
	if err := os.WriteFile(file, []byte("other"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := signing.Sign(file, signer{t, k, "a"}, signing.Namespace); err == nil || !strings.Contains(err.Error(), "not signed") {
		t.Errorf("%v", err)
	}
}
