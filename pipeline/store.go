package pipeline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/adrg/xdg"

	"github.com/dsbuild/dsbuild/internal/atomicfile"
	"github.com/dsbuild/dsbuild/wheel"
)

// Store keeps finished wheels by plan digest, in a directory each with the wheel and its manifest.
// It removes the least recently used wheels if there are more than Keep.
type Store struct {
	Dir  string
	Keep int
}

// DefaultStore returns the user's store.
func DefaultStore() Store {
	return Store{Dir: filepath.Join(xdg.CacheHome, "dsbuild", "wheels"), Keep: 100}
}

// withStoredWheel calls use for the wheel of the plan with this digest, and reports whether the store has it:
// undamaged, of this plan, and passed by audit. Another account may have stored something else.
func (s Store) withStoredWheel(
	ctx context.Context, digest string, audit func(ctx context.Context, file string) error, use func(StoredWheel) error,
) (ok bool, err error) {
	if _, err := os.Stat(s.Dir); err != nil || digest == "" {
		return false, nil //nolint:nilerr // an unreadable store counts as empty
	}
	err = withLock(ctx, s.Dir, true, func() error {
		entry := filepath.Join(s.Dir, digest)
		names, err := fs.Glob(os.DirFS(entry), "*"+wheel.ManifestSuffix)
		if err != nil || len(names) != 1 {
			return err
		}
		var kept StoredWheel
		if kept, ok = readStored(entry, names[0], digest); !ok {
			return nil // a rebuild replaces the entry
		}
		if ok = audit(ctx, kept.File) == nil; !ok {
			return context.Cause(ctx)
		}
		now := time.Now()
		_ = os.Chtimes(entry, now, now) // affects only the order of pruning
		return use(kept)
	})
	return ok && err == nil, err
}

// readStored returns the wheel of a manifest in dir; ok is false if one of its files is missing or damaged,
// or if it belongs to another plan.
func readStored(dir, manifest, digest string) (w StoredWheel, ok bool) {
	text, err := os.ReadFile(filepath.Join(dir, manifest))
	if err != nil {
		return StoredWheel{}, false
	}
	m, err := wheel.ParseManifest(text)
	if err != nil || m.Name+wheel.ManifestSuffix != manifest || m.PlanDigest != digest {
		return StoredWheel{}, false
	}
	file := filepath.Join(dir, m.Name)
	statement, err := os.ReadFile(file + wheel.ProvenanceSuffix)
	if err != nil {
		return StoredWheel{}, false
	}
	sum, _, err := wheel.HashRegular(file)
	return StoredWheel{File: file, Manifest: m, Provenance: statement}, err == nil && sum == m.SHA256
}

// Put keeps a finished wheel under its plan's digest.
func (s Store) Put(ctx context.Context, digest string, a wheel.Artifact) error {
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
	if _, err := Export(ctx, StoredWheel{File: a.Path, Manifest: a.Manifest, Provenance: statement}, tmp); err != nil {
		return err
	}
	return withLock(ctx, s.Dir, false, func() error {
		entry := filepath.Join(s.Dir, digest)
		if err := os.RemoveAll(entry); err != nil {
			return err
		}
		if err := os.Rename(tmp, entry); err != nil {
			return err
		}
		entries, err := os.ReadDir(s.Dir)
		if err != nil {
			return err
		}
		var dirs []string
		for _, e := range entries {
			switch dir := filepath.Join(s.Dir, e.Name()); {
			case !strings.HasPrefix(e.Name(), "."):
				dirs = append(dirs, dir)
			case strings.HasPrefix(e.Name(), ".new-"):
				if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > 24*time.Hour {
					_ = os.RemoveAll(dir) // of a process that was killed
				}
			}
		}
		for _, dir := range LeastRecentlyUsed(dirs, s.Keep) {
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
		}
		return nil
	})
}

// LeastRecentlyUsed returns the directories except the keep most recently used ones. A missing
// directory is treated as never used.
func LeastRecentlyUsed(dirs []string, keep int) []string {
	used := map[string]time.Time{}
	for _, dir := range dirs {
		if info, err := os.Stat(dir); err == nil {
			used[dir] = info.ModTime()
		}
	}
	slices.SortFunc(dirs, func(a, b string) int { return used[b].Compare(used[a]) })
	return dirs[min(keep, len(dirs)):]
}

// StoredWheel is a finished wheel with its sidecar files.
type StoredWheel struct {
	File       string // path of the wheel
	Manifest   wheel.Manifest
	Provenance []byte // the in-toto statement
}

// Export writes a wheel, its manifest and its statement to dir, and updates SHA256SUMS. Files are
// written atomically. It is safe for concurrent use.
func Export(ctx context.Context, w StoredWheel, dir string) (wheel.Artifact, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return wheel.Artifact{}, err
	}
	m := w.Manifest
	a := wheel.Artifact{Path: filepath.Join(dir, m.Name), SHA256: m.SHA256, Size: m.Size, Manifest: m}
	return a, withLock(ctx, dir, false, func() error {
		if err := copyWhole(w.File, a.Path); err != nil {
			return err
		}
		if err := w.writeByteCode(a.Path + wheel.ByteCodeSuffix); err != nil {
			return err
		}
		text, err := json.MarshalIndent(w.Manifest, "", "  ")
		if err != nil {
			return err
		}
		if err := atomicfile.Write(a.Path+wheel.ManifestSuffix, strings.NewReader(string(text)+"\n"), 0o644); err != nil {
			return err
		}
		before, _ := os.ReadFile(a.Path + wheel.ProvenanceSuffix) // none, or to be replaced
		if err := atomicfile.Write(a.Path+wheel.ProvenanceSuffix, bytes.NewReader(w.Provenance), 0o644); err != nil {
			return err
		}
		if err := w.copySignatures(a.Path, bytes.Equal(before, w.Provenance)); err != nil {
			return err
		}
		return writeSums(dir, filepath.Base(a.Path))
	})
}

// copySignatures copies the statement's signatures to the wheel at path. Unless same is set, it first
// removes that wheel's signatures, which sign another statement.
func (w StoredWheel) copySignatures(path string, same bool) error {
	there, err := wheel.SignatureFiles(path)
	if err != nil {
		return err
	}
	for _, f := range there {
		if same {
			continue
		}
		if err := os.Remove(f); err != nil {
			return err
		}
	}
	source, err := os.ReadFile(w.File + wheel.ProvenanceSuffix)
	if err != nil || !bytes.Equal(source, w.Provenance) || w.File == path {
		return nil //nolint:nilerr // there are no signatures of this statement
	}
	signatures, err := wheel.SignatureFiles(w.File)
	for _, f := range signatures {
		if err == nil {
			err = copyWhole(f, path+strings.TrimPrefix(f, w.File))
		}
	}
	return err
}

// writeByteCode copies the byte code to path, if there is any.
func (w StoredWheel) writeByteCode(path string) error {
	from := w.File + wheel.ByteCodeSuffix
	if _, err := os.Stat(from); errors.Is(err, fs.ErrNotExist) || w.Manifest.ByteCode == nil {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err // of another build with this name
		}
		return nil
	}
	return copyWhole(from, path)
}
