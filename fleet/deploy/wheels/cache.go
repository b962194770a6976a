package wheels

import (
	"bytes"
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

// Cache holds the results of verifying wheels, by sha256, for this very build of dsbuild:
// verifying a wheel costs more than deploying it to ten nodes. It also caches the sha256 of the
// files that it has read. The zero value caches nothing.
type Cache struct {
	Dir     string // private to this user
	Program string // identifies the build of dsbuild

	changedAt func(path string) (time.Time, error) // nil: filetime.At
}

// keepUnused is how long an unused entry stays in the cache.
const keepUnused = 30 * 24 * time.Hour

// DefaultCache is the cache of this user and this program.
func DefaultCache() Cache {
	exe, err := os.Executable()
	if err != nil {
		return Cache{}
	}
	info, err := os.Stat(exe)
	if err != nil {
		return Cache{}
	}
	return Cache{
		Dir:     filepath.Join(xdg.CacheHome, "dsbuild", "verified"),
		Program: fmt.Sprintf("%s %d %d", exe, info.Size(), info.ModTime().UnixNano()),
	}
}

// cacheEntry is an entry of the cache, as stored on disk.
type cacheEntry struct {
	Program string `json:"program"`
	Wheel   Wheel  `json:"wheel"`
}

// get returns the wheel at file if its bytes have been verified before.
func (v Cache) get(file string) (Wheel, bool) {
	if v.Dir == "" {
		return Wheel{}, false
	}
	sum, _, err := v.Sum(file)
	if err != nil {
		return Wheel{}, false
	}
	text, err := os.ReadFile(v.file(sum))
	if err != nil {
		return Wheel{}, false
	}
	var r cacheEntry
	if json.Unmarshal(text, &r) != nil || r.Program != v.Program || r.Wheel.Manifest.SHA256 != sum {
		return Wheel{}, false
	}
	touch(v.file(sum))
	r.Wheel.Path, r.Wheel.Manifest.Name = file, filepath.Base(file)
	return r.Wheel, true
}

// Sum returns the sha256 and the size of a file. It does not read the file again if its path,
// size and change times are the same as at the last read.
func (v Cache) Sum(file string) (sum string, size int64, err error) {
	before := v.state(file)
	if known, err := os.ReadFile(before); err == nil {
		sum, text, _ := strings.Cut(string(known), " ")
		size, err := strconv.ParseInt(text, 10, 64)
		if raw, wrong := hex.DecodeString(sum); err == nil && wrong == nil && len(raw) == sha256.Size {
			touch(before)
			return sum, size, nil
		}
	}
	sum, size, err = wheel.HashFile(file)
	if err == nil && before != "" && before == v.state(file) && v.makeDir() {
		atomicfile.Write(before, strings.NewReader(fmt.Sprint(sum, " ", size)), 0o600) //nolint:errcheck // after a failure the file is read again
		v.removeUnused()
	}
	return sum, size, err
}

// state is the path of the cached sum of a file in its current state. It is "" if the file was
// changed so recently that a further change might not be noticed.
func (v Cache) state(file string) string {
	changedAt := v.changedAt
	if changedAt == nil {
		changedAt = filetime.At
	}
	at, err := changedAt(file)
	if v.Dir == "" || err != nil || time.Since(at) < filetime.Slack {
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
	return filepath.Join(v.Dir, hex.EncodeToString(id[:])+".sum")
}

// touch marks an entry as used, so that removeUnused removes it later.
func touch(file string) {
	now := time.Now()
	os.Chtimes(file, now, now) //nolint:errcheck // after a failure the entry is removed earlier
}

// makeDir creates the cache folder and reports whether it exists.
func (v Cache) makeDir() bool { return v.Dir != "" && os.MkdirAll(v.Dir, 0o700) == nil }

// put stores a wheel in the cache. A failure to store it is not an error.
func (v Cache) put(w Wheel) {
	if !v.makeDir() {
		return
	}
	text, err := json.Marshal(cacheEntry{v.Program, w})
	if err != nil {
		return
	}
	if atomicfile.Write(v.file(w.Manifest.SHA256), bytes.NewReader(text), 0o600) != nil {
		return
	}
	v.removeUnused()
}

// removeUnused removes entries that have not been used for keepUnused.
func (v Cache) removeUnused() {
	entries, err := os.ReadDir(v.Dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > keepUnused {
			os.Remove(filepath.Join(v.Dir, e.Name()))
		}
	}
}

func (v Cache) file(sum string) string { return filepath.Join(v.Dir, sum+".json") }
