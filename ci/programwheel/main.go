// Command programwheel puts a compiled dsbuild into a wheel, with its manual pages and completions, for
// pip, pipx and uv.
//
//	bin/ci/programwheel bin/dsbuild linux amd64 0.1.0 bin/release
//
// It runs at the root of the checkout. Beside the program it reads README.md, LICENSE, NOTICE, and the folder
// bin/share with man and completions. The same files give the same wheel.
package main

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/dsbuild/dsbuild/wheel"
)

func main() {
	if len(os.Args) != 6 {
		fmt.Fprintln(os.Stderr, "usage: programwheel PROGRAM GOOS GOARCH VERSION FOLDER")
		os.Exit(2)
	}
	file, err := writeWheel(os.Args[1], os.Args[2]+"/"+os.Args[3], os.Args[4], os.Args[5])
	if err != nil {
		fmt.Fprintln(os.Stderr, "programwheel:", err)
		os.Exit(1)
	}
	fmt.Println(file)
}

// platformTag returns the platform tag of a program. The program is linked statically, so it needs
// neither glibc nor musl. macOS 12 is the oldest that Go supports.
func platformTag(system string) (string, error) {
	switch system {
	case "linux/amd64":
		return "manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64", nil
	case "linux/arm64":
		return "manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64", nil
	case "darwin/amd64":
		return "macosx_12_0_x86_64", nil
	case "darwin/arm64":
		return "macosx_12_0_arm64", nil
	case "windows/amd64":
		return "win_amd64", nil
	}
	return "", fmt.Errorf("there is no wheel for %s", system)
}

// releaseVersion matches a version of a release tag: 0.1.0, 0.1.0-rc.1. A snapshot adds its commit,
// or none in a checkout without a remote.
var releaseVersion = regexp.MustCompile(`^(\d+\.\d+\.\d+)(?:-(rc)\.(\d+))?(?:-snapshot\.([0-9a-f]+|none))?$`)

// pythonVersion returns a release's version in PEP 440's syntax.
func pythonVersion(version string) (string, error) {
	m := releaseVersion.FindStringSubmatch(version)
	if m == nil {
		return "", fmt.Errorf("version %q is not like 0.1.0 or 0.1.0-rc.1", version)
	}
	v := m[1] + m[2] + m[3]
	if m[4] != "" {
		v += ".dev0+" + m[4]
	}
	return v, nil
}

// writeWheel writes the wheel of a program into dir, and returns its path.
func writeWheel(program, system, release, dir string) (string, error) {
	platform, err := platformTag(system)
	if err != nil {
		return "", err
	}
	version, err := pythonVersion(release)
	if err != nil {
		return "", err
	}
	script := "dsbuild"
	if strings.HasPrefix(system, "windows/") {
		script += ".exe"
	}
	w := programWheel{stem: "dsbuild-" + version}
	w.zip = zip.NewWriter(&w.out)
	data := w.stem + ".data/data/share/"
	for _, f := range []struct{ from, to string }{
		{"bin/share/man/*", data + "man/man1/"},
		{"bin/share/completions/dsbuild.bash", data + "bash-completion/completions/dsbuild"},
		{"bin/share/completions/dsbuild.zsh", data + "zsh/site-functions/_dsbuild"},
		{"bin/share/completions/dsbuild.fish", data + "fish/vendor_completions.d/dsbuild.fish"},
		{program, w.stem + ".data/scripts/" + script},
		{"LICENSE", w.inDistInfo("licenses/LICENSE")},
		{"NOTICE", w.inDistInfo("licenses/NOTICE")},
	} {
		if err := w.addFiles(f.from, f.to); err != nil {
			return "", err
		}
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		return "", err
	}
	var tags strings.Builder
	for tag := range strings.SplitSeq(platform, ".") {
		fmt.Fprintf(&tags, "Tag: py3-none-%s\n", tag)
	}
	for _, f := range []struct{ name, text string }{
		{"METADATA", fmt.Sprintf(metadata, version, relativeLink.ReplaceAll(readme, []byte("](https://github.com/dsbuild/dsbuild/blob/main/$1")))},
		{"WHEEL", "Wheel-Version: 1.0\nGenerator: dsbuild\nRoot-Is-Purelib: false\n" + tags.String()},
	} {
		if err := w.addFile(w.inDistInfo(f.name), []byte(f.text), 0o644); err != nil {
			return "", err
		}
	}
	record := w.inDistInfo("RECORD")
	if err := w.addFile(record, wheel.FormatRecord(append(w.record, wheel.RecordEntry{Path: record, Size: -1})), 0o644); err != nil {
		return "", err
	}
	if err := w.zip.Close(); err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	file := filepath.Join(dir, w.stem+"-py3-none-"+platform+".whl")
	return file, os.WriteFile(file, w.out.Bytes(), 0o644)
}

// relativeLink matches the start of README.md's relative links.
var relativeLink = regexp.MustCompile(`\]\(([A-Za-z][\w./-]*[)#])`)

// metadata is the file METADATA (core metadata 2.4), of a version and a description.
const metadata = `Metadata-Version: 2.4
Name: dsbuild
Version: %s
Summary: Builds DeepSpeed wheels with precompiled ops, installs them on every node of a cluster, and proves that all nodes run the same
License-Expression: Apache-2.0
License-File: LICENSE
License-File: NOTICE
Project-URL: Source, https://github.com/dsbuild/dsbuild
Requires-Python: >=3.8
Description-Content-Type: text/markdown

%s`

// programWheel is a wheel in the making.
type programWheel struct {
	stem   string // name and version, the prefix of its directories
	out    bytes.Buffer
	zip    *zip.Writer
	record []wheel.RecordEntry
}

// inDistInfo returns the path of a file of dist-info.
func (w *programWheel) inDistInfo(name string) string { return w.stem + ".dist-info/" + name }

// addFiles adds the files that match pattern. If to ends in a slash it is a directory.
func (w *programWheel) addFiles(pattern, to string) error {
	files, err := filepath.Glob(pattern)
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("%s is not there; make release-snapshot makes it", pattern)
	}
	for _, file := range files {
		name := to
		if strings.HasSuffix(to, "/") {
			name = path.Join(to, filepath.Base(file))
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		mode := os.FileMode(0o644)
		if strings.Contains(name, ".data/scripts/") {
			mode = 0o755
		}
		if err := w.addFile(name, text, mode); err != nil {
			return err
		}
	}
	return nil
}

// addFile adds a file. Its time is the first that a zip file can hold.
func (w *programWheel) addFile(name string, text []byte, mode os.FileMode) error {
	h := &zip.FileHeader{Name: name, Method: zip.Deflate}
	h.SetMode(mode)
	f, err := w.zip.CreateHeader(h)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(text)
	w.record = append(w.record, wheel.RecordEntry{Path: name, Algorithm: "sha256", Digest: wheel.RecordDigest(sum[:]), Size: int64(len(text))})
	_, err = f.Write(text)
	return err
}
