//go:build linux

package crowd

import (
	"archive/zip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/wheel"
)

// inside is the part of a wheel that a node knows once it is installed.
type inside struct {
	name, sha256, version string
	record                string            // sha256 of RECORD
	build                 string            // DeepSpeed's build record
	manifest              json.RawMessage   // null if the wheel has none
	files                 map[string]string // path → RECORD's digest and the actual one, of DeepSpeed's own files
	digest                string            // of files
}

// read reads a wheel.
func read(path string) (inside, error) {
	whole, err := os.ReadFile(path)
	if err != nil {
		return inside{}, err
	}
	in := inside{name: filepath.Base(path), sha256: sum(whole), manifest: json.RawMessage("null"), files: map[string]string{}}
	z, err := zip.OpenReader(path)
	if err != nil {
		return inside{}, fmt.Errorf("%s: %w", path, err)
	}
	defer z.Close()
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			return inside{}, err
		}
		data, err := io.ReadAll(r)
		r.Close()
		if err != nil {
			return inside{}, fmt.Errorf("%s: %w", path, err)
		}
		in.take(f.Name, data)
	}
	var lines strings.Builder
	for _, name := range slices.Sorted(maps.Keys(in.files)) {
		fmt.Fprintf(&lines, "%s\x00%s\n", name, in.files[name])
	}
	in.digest = sum([]byte(lines.String()))
	return in, nil
}

// take adds one file of the wheel.
func (in *inside) take(name string, data []byte) {
	folder, file, _ := strings.Cut(name, "/")
	switch {
	case strings.HasSuffix(folder, ".dist-info") && file == "RECORD":
		in.record = sum(data)
		in.version = strings.Split(folder[:len(folder)-len(".dist-info")], "-")[1]
	case strings.HasSuffix(folder, ".dist-info") && file == "dsbuild.json":
		in.manifest = data
	case name == "deepspeed/git_version_info_installed.py":
		in.build = string(data)
	}
	if folder == "deepspeed" {
		is := sha256.Sum256(data)
		in.files[name] = fmt.Sprintf("sha256=%s %x", wheel.RecordDigest(is[:]), is)
	}
}

func sum(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])
}
