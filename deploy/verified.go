package deploy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/adrg/xdg"

	"github.com/dsbuild/dsbuild/internal/whole"
	"github.com/dsbuild/dsbuild/wheel"
)

// Verified remembers the wheels that this very program has verified, by their
// sha256: to take one apart costs more than to serve ten nodes with it. The zero
// value remembers nothing.
type Verified struct {
	Dir     string // of this user alone
	Program string // tells one build of dsbuild from another
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
	sum, _, err := wheel.HashFile(file)
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
	now := time.Now()
	os.Chtimes(v.file(sum), now, now) //nolint:errcheck // then it is forgotten earlier
	r.Wheel.Path, r.Wheel.Manifest.Name = file, filepath.Base(file)
	return r.Wheel, true
}

// put remembers a wheel, and forgets those that nobody has asked for in long.
// That it cannot be written down is no reason to fail.
func (v Verified) put(w Wheel) {
	if v.Dir == "" || os.MkdirAll(v.Dir, 0o700) != nil {
		return
	}
	text, err := json.Marshal(remembered{v.Program, w})
	if err != nil {
		return
	}
	if whole.Write(v.file(w.Manifest.SHA256), bytes.NewReader(text), 0o600) != nil {
		return
	}
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
