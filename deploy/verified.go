package deploy

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

	"github.com/dsbuild/dsbuild/internal/changed"
	"github.com/dsbuild/dsbuild/internal/whole"
	"github.com/dsbuild/dsbuild/wheel"
)

// Verified remembers the wheels that this very program has verified, by their
// sha256: to take one apart costs more than to serve ten nodes with it. And it remembers
// that of the files it has read. The zero value remembers nothing.
type Verified struct {
	Dir     string // of this user alone
	Program string // tells one build of dsbuild from another

	changedAt func(path string) (time.Time, error) // nil: changed.At
}

// keepVerified is how long a wheel is remembered that nobody asks for.
const keepVerified = 30 * 24 * time.Hour

// DefaultVerified is that of this user and program.
func DefaultVerified() Verified {
	exe, err := os.Executable()
	if err != nil {
		return Verified{}
	}
	info, err := os.Stat(exe)
	if err != nil {
		return Verified{}
	}
	return Verified{
		Dir:     filepath.Join(xdg.CacheHome, "dsbuild", "verified"),
		Program: fmt.Sprintf("%s %d %d", exe, info.Size(), info.ModTime().UnixNano()),
	}
}

// remembered is a verified wheel as it is written down.
type remembered struct {
	Program string `json:"program"`
	Wheel   Wheel  `json:"wheel"`
}

// get is the wheel at file if its bytes have been verified.
func (v Verified) get(file string) (Wheel, bool) {
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
	var r remembered
	if json.Unmarshal(text, &r) != nil || r.Program != v.Program || r.Wheel.Manifest.SHA256 != sum {
		return Wheel{}, false
	}
	touch(v.file(sum))
	r.Wheel.Path, r.Wheel.Manifest.Name = file, filepath.Base(file)
	return r.Wheel, true
}

// Sum is the sha256 of a file and its size. A file that is as it was when it was read
// last, by its name and by when it was changed, is not read again.
func (v Verified) Sum(file string) (sum string, size int64, err error) {
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
	if err == nil && before != "" && before == v.state(file) && v.keep() {
		whole.Write(before, strings.NewReader(fmt.Sprint(sum, " ", size)), 0o600) //nolint:errcheck // then it is read again
		v.forget()
	}
	return sum, size, err
}

// state is where the sum of a file is remembered as it is now; "" where it cannot be
// told from how it may be soon.
func (v Verified) state(file string) string {
	changedAt := v.changedAt
	if changedAt == nil {
		changedAt = changed.At
	}
	at, err := changedAt(file)
	if v.Dir == "" || err != nil || time.Since(at) < changed.Slack {
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

// touch has a file that is remembered forgotten later.
func touch(file string) {
	now := time.Now()
	os.Chtimes(file, now, now) //nolint:errcheck // then it is forgotten earlier
}

// keep makes the place for what is remembered.
func (v Verified) keep() bool { return v.Dir != "" && os.MkdirAll(v.Dir, 0o700) == nil }

// put remembers a wheel. That it cannot be written down is no reason to fail.
func (v Verified) put(w Wheel) {
	if !v.keep() {
		return
	}
	text, err := json.Marshal(remembered{v.Program, w})
	if err != nil {
		return
	}
	if whole.Write(v.file(w.Manifest.SHA256), bytes.NewReader(text), 0o600) != nil {
		return
	}
	v.forget()
}

// forget removes what nobody has asked for in long.
func (v Verified) forget() {
	entries, err := os.ReadDir(v.Dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > keepVerified {
			os.Remove(filepath.Join(v.Dir, e.Name()))
		}
	}
}

func (v Verified) file(sum string) string { return filepath.Join(v.Dir, sum+".json") }
