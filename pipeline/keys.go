package pipeline

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/dsbuild/dsbuild/wheel"
)

// KeyOf returns a second key for a request's wheel in the store, in addition to the plan's digest. It
// depends on a plan made without an engine, in which an image's tag stands for the image, and on the
// requested builder.
func KeyOf(sketch *Plan, builder string) string {
	text, _ := json.Marshal([]string{sketch.Digest, builder}) // only strings: cannot fail
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// keySuffix is the suffix of empty files in an entry of the store. Each file represents a key of its wheel.
const keySuffix = ".request"

// LinkKey adds a key to the plan with this digest. It does nothing if the store has no such wheel.
func (s Store) LinkKey(ctx context.Context, key, digest string) error {
	if _, err := os.Stat(s.Dir); err != nil {
		return nil //nolint:nilerr // an unreadable store counts as empty
	}
	return withLock(ctx, s.Dir, false, func() error {
		old, err := s.readNote(key)
		if err != nil {
			return err
		}
		entry := filepath.Join(s.Dir, digest)
		if _, err := os.Stat(entry); err != nil {
			return nil //nolint:nilerr // it was not stored
		}
		for _, name := range old {
			if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return os.WriteFile(filepath.Join(entry, key+keySuffix), nil, 0o644)
	})
}

// readNote returns the files for a key, usually one.
func (s Store) readNote(key string) ([]string, error) {
	entries, err := os.ReadDir(s.Dir)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, e := range entries {
		name := filepath.Join(s.Dir, e.Name(), key+keySuffix)
		if info, err := os.Lstat(name); err == nil && info.Mode().IsRegular() {
			found = append(found, name)
		}
	}
	return found, nil
}

// PlanOf returns the digest of a key's plan, or "".
func (s Store) PlanOf(ctx context.Context, key string) (digest string, err error) {
	if _, err := os.Stat(s.Dir); err != nil {
		return "", nil //nolint:nilerr // an unreadable store counts as empty
	}
	err = withLock(ctx, s.Dir, true, func() error {
		notes, err := s.readNote(key)
		if len(notes) == 1 {
			digest = filepath.Base(filepath.Dir(notes[0]))
		}
		return err
	})
	return digest, err
}

// Find returns the wheel of a plan if the store has it unchanged. Another process may prune it at
// any time.
func (s Store) Find(ctx context.Context, p *Plan, digest string) (w StoredWheel, ok bool, err error) {
	ok, err = s.withStoredWheel(ctx, digest, p.audit, func(kept StoredWheel) error {
		w = kept
		return nil
	})
	return w, ok, err
}

// FindExported returns the wheel of a plan that an earlier run exported to dir, if it matches its
// manifest.
func FindExported(dir, digest string) (StoredWheel, bool, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return StoredWheel{}, false, nil
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), wheel.ManifestSuffix) {
			continue
		}
		if w, ok := readStored(dir, e.Name(), digest); ok {
			return w, true, nil
		}
	}
	return StoredWheel{}, false, err
}
