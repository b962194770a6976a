package dockerfiles

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A line that is neither a section nor a package has its place in the error.
func TestParseLockErrors(t *testing.T) {
	sum := strings.Repeat("a", 64)
	for text, want := range map[string]string{
		"numpy==1 " + sum:                                     "packages.lock:1: neither",
		"[runtime torch=2 python=3]\nnumpy==1 abc":            "packages.lock:2: neither",
		"# x\n[runtime python=3 torch=2]\nnumpy==1 " + sum:    "packages.lock:2: no torch=",
		"[runtime torch=2]\nnumpy==1 " + sum + " and another": "packages.lock:1: neither",
	} {
		if _, err := parseLock(text); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// The files that pip and uv read without a plan name their packages with hashes, all of them.
func TestToolPackagesAreAllPinned(t *testing.T) {
	for source, want := range map[string]int{"cuda13": 1, "nvcc12": 6} {
		if got := ToolPackages(source, "x86_64"); len(got) != want {
			t.Errorf("%s: %v, want %d packages", source, got, want)
		}
	}
	for _, name := range []string{uvX86, uvArm, "nvcc12.txt", "ptxas12.txt"} {
		lines, err := requirements(name)
		if err != nil || len(lines) != len(readPinned(name)) {
			t.Errorf("%s: %v, %q has a line without a hash", name, err, lines)
		}
	}
}

// The uv of the images is one of the files that are run on nodes.
func TestUVOfTheImagesIsListed(t *testing.T) {
	arm := readPinned(uvArm)
	if len(arm) != 1 || arm[0].Version != UVVersion() {
		t.Errorf("%s: %v, uv.txt has %s", uvArm, arm, UVVersion())
	}
	for _, p := range append(arm, readPinned(uvX86)...) {
		if !slices.Contains(UVSums(), p.SHA256) {
			t.Errorf("uv-files.txt lacks %s of uv.txt", p.SHA256)
		}
	}
	if n := len(UVSums()); n < 6 {
		t.Errorf("uv-files.txt lists %d files, want one for each system", n)
	}
}

// Whatever pip or uv installs or fetches for a build has a hash, and what they install is a wheel. The one that smoke
// installs is the wheel that was built. uv.txt has the hash of one wheel.
func TestInstallsAskForHashes(t *testing.T) {
	files, err := filepath.Glob("*.sh")
	more, err2 := filepath.Glob("../pipeline/scripts/*.sh")
	found := 0
	for _, file := range append(files, more...) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(strings.TrimSpace(line), "#") || !regexp.MustCompile(`\bpip\b.* (install|download|wheel) `).MatchString(line) {
				continue
			}
			found++
			built := filepath.Base(file) == "smoke.sh" && strings.Contains(line, "--no-index \"$DSBUILD_IN\"/pack/")
			wheel := strings.Contains(line, "--only-binary :all:") || strings.Contains(line, " download ") || strings.Contains(line, "/uv.txt")
			if !built && (!strings.Contains(line, "--require-hashes") || !wheel) {
				t.Errorf("%s: %s", file, line)
			}
		}
	}
	if err := errors.Join(err, err2); err != nil || found < 7 {
		t.Errorf("%d lines, %v", found, err)
	}
}
