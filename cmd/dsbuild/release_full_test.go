//go:build full

package main

import (
	"debug/elf"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/pipeline/engine"
)

// TestFullRelease makes what a release would publish, and runs it in a Debian that
// has nothing installed but what Debian itself needs.
func TestFullRelease(t *testing.T) {
	repo, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	command(t, repo, "make", "release-snapshot")
	release := filepath.Join(repo, "bin", "release")
	sums := command(t, release, "sha256sum", "--check", "--strict", "SHA256SUMS")
	for _, want := range []string{
		"_linux_amd64.tar.gz", "_linux_arm64.tar.gz", "_darwin_amd64.tar.gz", "_darwin_arm64.tar.gz", "_windows_amd64.zip", ".cdx.json",
		"_linux_amd64.deb", "_linux_arm64.rpm", "musllinux_1_1_x86_64.whl", "musllinux_1_1_aarch64.whl", "macosx_12_0_x86_64.whl", "macosx_12_0_arm64.whl", "win_amd64.whl",
	} {
		if !strings.Contains(sums, want+": OK") {
			t.Errorf("SHA256SUMS has no %s:\n%s", want, sums)
		}
	}
	archives, err := filepath.Glob(filepath.Join(release, "*_linux_amd64.tar.gz"))
	if err != nil || len(archives) != 1 {
		t.Fatalf("%q, %v", archives, err)
	}
	root := filepath.Join(t.TempDir(), "root")
	unpacked := filepath.Join(root, "opt", "dsbuild")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	command(t, root, "tar", "--exclude=./dev/*", "-xf", engine.NewBases(nil).There("bookworm"))
	if err := os.MkdirAll(unpacked, 0o755); err != nil {
		t.Fatal(err)
	}
	command(t, unpacked, "tar", "-xzf", archives[0])
	for _, want := range []string{"README.md", "share/man/man1/dsbuild-wheel.1", "share/completions/dsbuild.bash", "docs/fleet.md"} {
		if _, err := os.Stat(filepath.Join(unpacked, want)); err != nil {
			t.Errorf("in the archive: %v", err)
		}
	}
	program, err := elf.Open(filepath.Join(unpacked, "dsbuild"))
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	if libs, err := program.ImportedLibraries(); err != nil || len(libs) > 0 {
		t.Errorf("not static: %q, %v", libs, err)
	}
	inside := func(words ...string) string {
		return command(t, repo, "chroot", append([]string{root, "/opt/dsbuild/dsbuild"}, words...)...)
	}
	if said := inside("--version"); strings.Contains(said, "(devel)") || !strings.HasPrefix(said, "dsbuild v") {
		t.Errorf("version: %s", said)
	}
	if said := inside("gpus"); !strings.Contains(said, "A100") {
		t.Errorf("gpus: %s", said)
	}
	if said := inside("completion", "bash"); said == "" {
		t.Error("completion bash says nothing")
	}
	info, err := os.Stat(filepath.Join(unpacked, "dsbuild"))
	if err != nil {
		t.Fatal(err)
	}
	const most = 35_000_000
	if info.Size() > most {
		t.Errorf("the program has %d bytes, at most %d are allowed", info.Size(), most)
	}
	t.Logf("result: it says of itself: %s", strings.TrimSpace(inside("--version")))
	t.Logf("result: the program for Linux on x86-64: %.1f MB", float64(info.Size())/1e6)
	t.Logf("result: files with a right checksum: %d", strings.Count(sums, ": OK"))
}
