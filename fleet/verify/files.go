package verify

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/dsbuild/dsbuild/wheel"
)

// fileList maps the path of each file to its digests, separated by spaces: first the digest from
// RECORD (algorithm=digest), empty if RECORD does not list the file; then the actual digest in
// hex by the same algorithm, empty if the file is missing, or unreadable. If the algorithm is not
// sha256, the actual sha256 follows as a third part.
type fileList map[string]string

// unreadable is in place of a digest.
const unreadable = "unreadable"

// digest is the digest of a list, computed as inspect_files.py does.
func (f fileList) digest() string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(f)) {
		fmt.Fprintf(h, "%s\x00%s\n", name, f[name])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// contents is the meaning of a file list; many nodes have the same.
type contents struct {
	files                         map[string]string // path → actual sha256
	sum                           string            // digest of files: equal if they are equal
	mismatched, missing, unlisted []string          // not as in RECORD; not there; not in RECORD
	unreadable                    []string          // for this user
}

// compare compares the files of a list with their digests in RECORD.
func (f fileList) compare() *contents {
	c := &contents{files: map[string]string{}}
	for _, name := range slices.Sorted(maps.Keys(f)) {
		recorded, is, _ := strings.Cut(f[name], " ")
		is, sum, other := strings.Cut(is, " ")
		if !other {
			sum = is
		}
		_, want, _ := strings.Cut(recorded, "=")
		switch {
		case is == "":
			c.missing = append(c.missing, name)
			continue
		case is == unreadable && recorded != "":
			c.unreadable = append(c.unreadable, name)
			continue
		case recorded == "":
			c.unlisted = append(c.unlisted, name)
		case is != inHex(want):
			c.mismatched = append(c.mismatched, name)
		}
		c.files[name] = sum
	}
	c.sum = fileList(c.files).digest()
	return c
}

// fileLists stores each list of files once, for any number of nodes.
type fileLists struct {
	mu   sync.Mutex
	kept map[string]*contents
}

// maxKnown bounds how many known digests dsbuild sends to a node.
const maxKnown = 16

// digests returns the digests of the lists that nodes may omit.
func (f *fileLists) digests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	known := []string{}
	for digest := range f.kept {
		if len(known) < maxKnown {
			known = append(known, digest)
		}
	}
	slices.Sort(known)
	return known
}

// intern returns the contents of a list, stored once for all nodes. claimed is the digest that the node
// claims. It counts only if the node sent no list: a node must not replace a list that others are
// compared with.
func (f *fileLists) intern(claimed string, files fileList) *contents {
	digest := files.digest()
	f.mu.Lock()
	defer f.mu.Unlock()
	if kept, ok := f.kept[claimed]; ok && len(files) == 0 {
		return kept
	}
	if f.kept == nil {
		f.kept = map[string]*contents{}
	}
	if _, ok := f.kept[digest]; !ok {
		f.kept[digest] = files.compare()
	}
	return f.kept[digest]
}

// filesOf returns the sha256 of a wheel's files in DeepSpeed's folder, by path. wheel.LoadAll has
// compared RECORD with the files.
func filesOf(path string) (map[string]string, error) {
	a, err := wheel.Open(path)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	files, err := a.InstalledFiles("")
	maps.DeleteFunc(files, func(name, _ string) bool { return !strings.HasPrefix(name, "deepspeed/") })
	return files, err
}

// inHex converts a digest from RECORD's encoding to hex, as nodes write it. It returns "" if the digest is invalid.
func inHex(digest string) string {
	sum, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(digest, "="))
	if err != nil {
		return ""
	}
	return hex.EncodeToString(sum)
}
