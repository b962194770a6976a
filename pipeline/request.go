package pipeline

import (
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

// Request is the digest of what was asked for: of a plan made without looking
// for an engine, so that an image's tag stands for the image, and of the builder
// that was asked for. It costs nothing to know, and is noted beside the wheel
// that was made for it.
func Request(p *Plan, builder string) (string, error) {
	text, err := json.Marshal([]string{p.Digest, builder})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// requestSuffix ends the names of empty files in an entry of the store, each
// of a request that led to its wheel.
const requestSuffix = ".request"

// Note keeps in mind that a request led to the plan with this digest. It does
// nothing where the store has no such wheel.
func (s Store) Note(request, digest string) error {
	if _, err := os.Stat(s.Dir); err != nil {
		return nil //nolint:nilerr // what cannot be seen is not there
	}
	return locked(s.Dir, false, func() error {
		old, err := s.noted(request)
		if err != nil {
			return err
		}
		entry := filepath.Join(s.Dir, digest)
		if _, err := os.Stat(entry); err != nil {
			return nil //nolint:nilerr // likewise
		}
		for _, name := range old {
			if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return os.WriteFile(filepath.Join(entry, request+requestSuffix), nil, 0o644)
	})
}

// noted are the notes of a request: one, if all is well.
func (s Store) noted(request string) ([]string, error) {
	entries, err := os.ReadDir(s.Dir)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, e := range entries {
		name := filepath.Join(s.Dir, e.Name(), request+requestSuffix)
		if info, err := os.Lstat(name); err == nil && info.Mode().IsRegular() {
			found = append(found, name)
		}
	}
	return found, nil
}

// Asked returns the digest of the plan that a request led to, "" where none is
// known.
func (s Store) Asked(request string) (digest string, err error) {
	if _, err := os.Stat(s.Dir); err != nil {
		return "", nil //nolint:nilerr // what cannot be seen is not there
	}
	err = locked(s.Dir, true, func() error {
		notes, err := s.noted(request)
		if len(notes) == 1 {
			digest = filepath.Base(filepath.Dir(notes[0]))
		}
		return err
	})
	return digest, err
}

// Look returns the wheel of a plan where it lies in the store, if its bytes are
// what they were. It may be pruned at any time.
func (s Store) Look(digest string) (p Product, ok bool, err error) {
	if _, err := os.Stat(s.Dir); err != nil || digest == "" {
		return Product{}, false, nil //nolint:nilerr // likewise
	}
	err = locked(s.Dir, true, func() error {
		p, ok, err = s.find(digest)
		return err
	})
	return p, ok, err
}

// Placed returns the wheel of a plan that lies in the directory dir, where an
// earlier run has put it, if it is what its manifest says.
func Placed(dir, digest string) (Product, bool, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return Product{}, false, nil
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), wheel.ManifestSuffix) {
			continue
		}
		if p, ok := placed(dir, e.Name()); ok && p.Manifest.PlanDigest == digest {
			return p, true, nil
		}
	}
	return Product{}, false, err
}

// placed is a wheel by the name of its manifest. What cannot be read is none.
func placed(dir, manifest string) (Product, bool) {
	text, err := os.ReadFile(filepath.Join(dir, manifest))
	if err != nil {
		return Product{}, false
	}
	m, err := wheel.ParseManifest(text)
	if err != nil || m.Name+wheel.ManifestSuffix != manifest {
		return Product{}, false
	}
	file := filepath.Join(dir, m.Name)
	statement, err := os.ReadFile(file + wheel.ProvenanceSuffix)
	if err != nil {
		return Product{}, false
	}
	sum, _, err := wheel.HashFile(file)
	return Product{File: file, Manifest: m, Provenance: statement}, err == nil && sum == m.SHA256
}
