package wheel

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"path"
	"strings"
)

// InstalledFiles returns the sha256 in hex of each file that installers put into site-packages, by
// its path there. Most come from RECORD, which the caller must compare with the files. site is the
// path of site-packages below the environment, such as lib/python3.11/site-packages: a wheel's data
// may also go there. If site is empty, data is ignored.
func (a *Archive) InstalledFiles(site string) (map[string]string, error) {
	entries, err := a.record()
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	for _, e := range entries {
		name, ok := installedName(path.Clean(e.Path), site)
		if !ok || e.Algorithm == "" { // RECORD itself has no hash
			continue
		}
		sum, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(e.Digest, "="))
		if err != nil {
			return nil, fmt.Errorf("RECORD: %s: %w", e.Path, err)
		}
		if files[name] = hex.EncodeToString(sum); e.Algorithm != "sha256" {
			if files[name], err = a.hashMember(context.Background(), e.Path); err != nil {
				return nil, err
			}
		}
	}
	return files, nil
}

// installedName returns the path below site-packages of the file name of a wheel; ok is false if
// installers put it elsewhere.
func installedName(name, site string) (installed string, ok bool) {
	elements := strings.SplitN(name, "/", 3)
	if len(elements) == 3 && strings.HasSuffix(elements[0], dataSuffix) && elements[1] == "data" {
		installed, ok = strings.CutPrefix(elements[2], site+"/")
		return installed, ok && site != ""
	}
	scheme, installed := Place(name)
	return installed, scheme == ""
}
