package environment

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/adrg/xdg"

	"github.com/dsbuild/dsbuild/internal/atomicfile"
	"github.com/dsbuild/dsbuild/internal/filetime"
	"github.com/dsbuild/dsbuild/wheel"
)

// Sums caches the SHA-256 of files, and what their machine code needs of a node: an environment with torch has gigabytes. The
// zero value caches nothing.
type Sums struct {
	Dir string // private to this user

	changedAt func(path string) (time.Time, error) // defaults to filetime.At
}

// keepUnused is how long an unused entry stays in the cache.
const keepUnused = 30 * 24 * time.Hour

// DefaultSums returns this user's cache.
func DefaultSums() Sums { return Sums{Dir: filepath.Join(xdg.CacheHome, "dsbuild", "sums")} }

// Sum returns a file's SHA-256 in hex and its size in bytes. It reads the file only if its path, size or change times
// differ from those at the last read.
func (s Sums) Sum(file string) (sum string, size int64, err error) {
	before := s.entry(file)
	if known, err := os.ReadFile(before); err == nil {
		sum, text, _ := strings.Cut(string(known), " ")
		size, err := strconv.ParseInt(text, 10, 64)
		if raw, wrong := hex.DecodeString(sum); err == nil && wrong == nil && len(raw) == sha256.Size {
			markUsed(before)
			return sum, size, nil
		}
	}
	sum, size, err = wheel.HashFile(file)
	if err == nil && before == s.entry(file) {
		s.write(before, fmt.Sprint(sum, " ", size))
	}
	return sum, size, err
}

// Manifest describes the wheel f at path for nodes of a platform such as linux_x86_64, by its machine code. The result is cached
// by f.SHA256, already compared with the file.
func (s Sums) Manifest(ctx context.Context, path string, f File, platform string) (wheel.Manifest, error) {
	entry := s.manifestEntry(f, platform)
	if known, err := os.ReadFile(entry); err == nil {
		var m wheel.Manifest
		sum, text, _ := bytes.Cut(known, []byte("\n"))
		if digest := sha256.Sum256(text); hex.EncodeToString(digest[:]) == string(sum) && json.Unmarshal(text, &m) == nil {
			markUsed(entry)
			return m, nil
		}
	}
	c, err := wheel.Inspect(ctx, path)
	if err != nil {
		return wheel.Manifest{}, err
	}
	m := c.ManifestFor(platform, f.File)
	if text, err := json.Marshal(m); err == nil {
		s.write(entry, fmt.Sprintf("%x\n%s", sha256.Sum256(text), text))
	}
	return m, nil
}

// markUsed keeps an entry from removeUnused.
func markUsed(entry string) {
	now := time.Now()
	os.Chtimes(entry, now, now) //nolint:errcheck // after a failure removeUnused removes the entry earlier
}

// write writes an entry and removes unused entries. It does nothing if the entry is "".
func (s Sums) write(entry, text string) {
	if entry == "" || os.MkdirAll(s.Dir, 0o700) != nil {
		return
	}
	atomicfile.Write(entry, strings.NewReader(text), 0o600) //nolint:errcheck // after a failure the file is read again
	s.removeUnused()
}

// manifestEntry returns the path of the cache entry for a wheel's manifest. Its name depends on the running program, because
// another version of dsbuild may describe the same wheel differently.
func (s Sums) manifestEntry(f File, platform string) string {
	if s.Dir == "" {
		return ""
	}
	program, err := os.Executable()
	if err == nil {
		program, _, err = s.Sum(program)
	}
	if err != nil {
		return ""
	}
	id := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s\x00%s", program, f.SHA256, f.File, platform))
	return filepath.Join(s.Dir, hex.EncodeToString(id[:]))
}

// entry returns the path of the cache entry for a file in its current state. It returns "" if the file
// changed so recently that another change could go unnoticed.
func (s Sums) entry(file string) string {
	changedAt := s.changedAt
	if changedAt == nil {
		changedAt = filetime.At
	}
	at, err := changedAt(file)
	if s.Dir == "" || err != nil || time.Since(at) < filetime.Slack {
		return ""
	}
	path, err := filepath.Abs(file)
	if err != nil {
		return ""
	}
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	id := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d %d %d", path, info.Size(), info.ModTime().UnixNano(), at.UnixNano()))
	return filepath.Join(s.Dir, hex.EncodeToString(id[:]))
}

// removeUnused removes entries that have not been used for keepUnused.
func (s Sums) removeUnused() {
	entries, err := os.ReadDir(s.Dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > keepUnused {
			os.Remove(filepath.Join(s.Dir, e.Name()))
		}
	}
}
