//go:build full

package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/wheel"
)

// A wheel is built and signed by one builder, built again and signed by another, and a policy that asks
// for two builders accepts it; with one signature it does not. The statement and the SBOM name the
// sha256 of the files of torch and of the compiler that were installed.
func TestFullInsideRebuild(t *testing.T) {
	dir := t.TempDir()
	runs := func(want int, args ...string) (string, string) {
		t.Helper()
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), args, strings.NewReader(""), &stdout, io.MultiWriter(&stderr, testLog{t})); code != want {
			t.Fatalf("dsbuild %s: exit %d, want %d\n%s", strings.Join(args, " "), code, want, &stderr)
		}
		return stdout.String(), stderr.String()
	}
	signers := ""
	for _, name := range []string{"one", "two"} {
		key := filepath.Join(dir, name)
		command(t, ".", "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
		public, err := os.ReadFile(key + ".pub")
		if err != nil {
			t.Fatal(err)
		}
		signers += fmt.Sprintf("  - {name: %s, key: %q}\n", name, strings.TrimSpace(string(public)))
	}
	policy := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(policy, []byte("builders: 2\nsigners:\n"+signers), 0o600); err != nil {
		t.Fatal(err)
	}

	built := build(t, "--abi", "stable", "--ops", "cpu_adam,utils", "--sign", filepath.Join(dir, "one"), "-o", filepath.Join(dir, "dist"))
	if _, stderr := runs(4, "verify-wheel", "--policy", policy, built.Path); !strings.Contains(stderr, "1 of 2 required signatures") {
		t.Error(stderr)
	}
	stdout, _ := runs(0, "rebuild", "--jobs", "1", "--sign", filepath.Join(dir, "two"), built.Path)
	if want := filepath.Base(built.Path) + " is reproducible: the rebuild has the same sha256 " + built.SHA256 + "\n"; stdout != want {
		t.Errorf("%q, want %q", stdout, want)
	}
	if stdout, _ := runs(0, "verify-wheel", "--policy", policy, built.Path); !regexp.MustCompile(`(?m)^policy +ok`).MatchString(stdout) {
		t.Error(stdout)
	}
	if left, _ := filepath.Glob(built.Path + wheel.ProvenanceSuffix + ".*.sig"); len(left) != 2 {
		t.Errorf("signatures: %q", left)
	}

	statement, err := os.ReadFile(built.Path + wheel.ProvenanceSuffix)
	if err != nil {
		t.Fatal(err)
	}
	compact := strings.Join(strings.Fields(string(statement)), "")
	for _, pattern := range []string{
		`"digest":\{"sha256":"[0-9a-f]{64}"\},"name":"archive","uri":"pkg:pypi/torch@2.15.0"`,
		`"digest":\{"sha256":"[0-9a-f]{64}"\},"name":"archive","uri":"pkg:deb/debian/gcc-12@`,
	} {
		if ok, err := regexp.MatchString(pattern, compact); (!ok || err != nil) && (built.Manifest.Builder != "host" || !strings.Contains(pattern, "deb/")) {
			t.Errorf("the statement has no %s", pattern)
		}
	}
	t.Logf("result: built by two builders: %s, sha256 %.12s", filepath.Base(built.Path), built.SHA256)
}
