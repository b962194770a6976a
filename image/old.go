package image

import (
	"archive/zip"
	"bytes"
	"path"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/wheel"
)

// outsideFiles returns the files of an installed distribution outside of site-packages, by its
// RECORD: its commands. Those of another environment are left alone.
func outsideFiles(record []byte, site string) []string {
	entries, err := wheel.ParseRecord(bytes.NewReader(record))
	if err != nil {
		return nil
	}
	prefix := path.Dir(path.Dir(path.Dir(site)))
	var out []string
	for _, e := range entries {
		at := path.Join(site, e.Path)
		if strings.HasPrefix(e.Path, "../") && strings.HasPrefix(at, prefix+"/bin/") {
			out = append(out, at)
		}
	}
	return out
}

// zipTime returns the time of the newest file in a zip.
func zipTime(file string) (newest time.Time, err error) {
	z, err := zip.OpenReader(file)
	if err != nil {
		return newest, err
	}
	defer z.Close()
	for _, f := range z.File {
		if t := f.Modified; t.After(newest) {
			newest = t
		}
	}
	return newest, nil
}
