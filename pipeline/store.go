package pipeline

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/adrg/xdg"

	"github.com/dsbuild/dsbuild/internal/whole"
	"github.com/dsbuild/dsbuild/wheel"
)

// Store keeps finished wheels by plan digest: one directory each, with the
// wheel and its manifest. The least recently used go first when there are
// more than Keep.
type Store struct {
	Dir  string
	Keep int
}

// DefaultStore is the user's.
func DefaultStore() Store {
	return Store{Dir: filepath.Join(xdg.CacheHome, "dsbuild", "wheels"), Keep: 100}
}

// Get copies the wheel of a plan into dir, with its manifest, and reports
// whether there was one whose bytes are what they were.
func (s Store) Get(digest, dir string) (a wheel.Artifact, ok bool, err error) {
	return s.get(digest, func(p Product) (wheel.Artifact, error) { return Place(p, dir) })
}

// get is Get with what becomes of the wheel left to place.
func (s Store) get(digest string, place func(Product) (wheel.Artifact, error)) (a wheel.Artifact, ok bool, err error) {
	if _, err := os.Stat(s.Dir); err != nil {
		return wheel.Artifact{}, false, nil //nolint:nilerr // what cannot be seen is not there
	}
	err = locked(s.Dir, true, func() error {
		p, there, err := s.find(digest)
		if err != nil {
			return fmt.Errorf("store: %w", err)
		}
		if there {
			a, err = place(p)
			a.Cached, ok = true, err == nil
		}
		return err
	})
	return a, ok, err
}

// find is the stored wheel of a plan, if its bytes are what they were.
func (s Store) find(digest string) (Product, bool, error) {
	entry := filepath.Join(s.Dir, digest)
	names, err := filepath.Glob(filepath.Join(entry, "*"+wheel.ManifestSuffix))
	if err != nil || len(names) != 1 {
		return Product{}, false, err
	}
	text, err := os.ReadFile(names[0])
	if err != nil {
		return Product{}, false, nil //nolint:nilerr // an entry that cannot be read is none
	}
	m, err := wheel.ParseManifest(text)
	if err != nil {
		return Product{}, false, nil //nolint:nilerr // likewise
	}
	kept := filepath.Join(entry, m.Name)
	if sum, _, err := wheel.HashRegular(kept); err != nil || sum != m.SHA256 {
		return Product{}, false, os.RemoveAll(entry) // damaged: built again
	}
	statement, err := os.ReadFile(kept + wheel.ProvenanceSuffix)
	if err != nil {
		return Product{}, false, os.RemoveAll(entry) // likewise
	}
	now := time.Now()
	_ = os.Chtimes(entry, now, now) // only the order of pruning hangs on it
	return Product{File: kept, Manifest: m, Provenance: statement}, true, nil
}

// Put keeps a finished wheel under its plan's digest.
func (s Store) Put(digest string, a wheel.Artifact) error {
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(s.Dir, ".new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	statement, err := os.ReadFile(a.Path + wheel.ProvenanceSuffix)
	if err != nil {
		return err
	}
	if _, err := Place(Product{File: a.Path, Manifest: a.Manifest, Provenance: statement}, tmp); err != nil {
		return err
	}
	return locked(s.Dir, false, func() error {
		entry := filepath.Join(s.Dir, digest)
		if err := os.RemoveAll(entry); err != nil {
			return err
		}
		if err := os.Rename(tmp, entry); err != nil {
			return err
		}
		return s.prune()
	})
}

func (s Store) prune() error {
	entries, err := os.ReadDir(s.Dir)
	if err != nil {
		return err
	}
	type aged struct {
		path string
		used time.Time
	}
	var all []aged
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && !strings.HasPrefix(e.Name(), ".") {
			all = append(all, aged{filepath.Join(s.Dir, e.Name()), info.ModTime()})
		}
	}
	slices.SortFunc(all, func(a, b aged) int { return b.used.Compare(a.used) })
	for i := s.Keep; i < len(all); i++ {
		if err := os.RemoveAll(all[i].path); err != nil {
			return err
		}
	}
	return nil
}

// Product is a finished wheel with what lies beside it.
type Product struct {
	File       string // path of the wheel
	Manifest   wheel.Manifest
	Provenance []byte // the in-toto statement
}

// Place puts a wheel, its manifest and its statement into dir, each whole or
// not at all, and writes dir's SHA256SUMS anew. Several may do so at once.
func Place(p Product, dir string) (wheel.Artifact, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return wheel.Artifact{}, err
	}
	m := p.Manifest
	a := wheel.Artifact{Path: filepath.Join(dir, m.Name), SHA256: m.SHA256, Size: m.Size, Manifest: m}
	return a, locked(dir, false, func() error {
		if err := p.write(a.Path); err != nil {
			return err
		}
		return writeSums(dir)
	})
}

// write copies the wheel to path and puts the rest beside it.
func (p Product) write(path string) error {
	src, err := wheel.OpenRegular(p.File)
	if err != nil {
		return err
	}
	defer src.Close()
	if err := whole.Write(path, src, 0o644); err != nil {
		return err
	}
	if err := p.writeByteCode(path + wheel.ByteCodeSuffix); err != nil {
		return err
	}
	text, err := json.MarshalIndent(p.Manifest, "", "  ")
	if err != nil {
		return err
	}
	if err := whole.Write(path+wheel.ManifestSuffix, strings.NewReader(string(text)+"\n"), 0o644); err != nil {
		return err
	}
	return whole.Write(path+wheel.ProvenanceSuffix, bytes.NewReader(p.Provenance), 0o644)
}

// writeByteCode copies the byte code to path, where there is any: a wheel is as
// good without.
func (p Product) writeByteCode(path string) error {
	src, err := wheel.OpenRegular(p.File + wheel.ByteCodeSuffix)
	if errors.Is(err, fs.ErrNotExist) || p.Manifest.ByteCode == nil {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err // that of another build with this name
		}
		return nil
	}
	if err != nil {
		return err
	}
	defer src.Close()
	return whole.Write(path, src, 0o644)
}
