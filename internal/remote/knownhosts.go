package remote

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/skeema/knownhosts"
	xknownhosts "golang.org/x/crypto/ssh/knownhosts"

	"github.com/dsbuild/dsbuild/internal/hint"
)

// hostKeys reads known_hosts files, each set of them once: a thousand nodes
// share one file of a thousand lines. Nothing is ever written to them.
type hostKeys struct {
	mu sync.Mutex
	db map[string]*keyDB
}

// keyDB is the readable part of known_hosts files.
type keyDB struct {
	*knownhosts.HostKeyDB
	// original has the user's file for a copy that was read in its place.
	original map[string]string
	// leftOut says of each unreadable line where it is and why.
	leftOut []string
}

// fileOf is the user's file that a known key is from.
func (db *keyDB) fileOf(k xknownhosts.KnownKey) string {
	if file, ok := db.original[k.Filename]; ok {
		return file
	}
	return k.Filename
}

// load returns the keys in files; the files' sizes and times are part of the
// cache key, so that a key accepted meanwhile is seen.
func (h *hostKeys) load(files []string) (*keyDB, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var present []string
	id := ""
	for _, f := range files {
		if st, err := os.Stat(f); err == nil {
			present = append(present, f)
			id += fmt.Sprintf("%s\x00%d\x00%d\x00", f, st.Size(), st.ModTime().UnixNano())
		}
	}
	if db := h.db[id]; db != nil {
		return db, nil
	}
	db := &keyDB{}
	var err error
	if db.HostKeyDB, err = knownhosts.NewDB(present...); err != nil {
		db, err = loadReadable(present)
	}
	if err != nil {
		return nil, hint.With(fmt.Errorf("%w: %w", ErrHostKey, err), "repair or remove that line")
	}
	h.db = map[string]*keyDB{id: db} // an older state is of no more use
	return db, nil
}

// loadReadable reads files without the lines that cannot be read, as OpenSSH
// does. The library reads whole files only: it gets copies.
func loadReadable(files []string) (*keyDB, error) {
	dir, err := os.MkdirTemp("", "dsbuild-known-hosts-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // public keys are no secret
	db := &keyDB{original: map[string]string{}}
	copies := make([]string, len(files))
	for i, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		lines := bytes.Split(text, []byte("\n"))
		one := fmt.Sprintf("%s/line", dir)
		for n, line := range lines {
			unreadable := checkKnownHost(one, line)
			if unreadable == nil {
				continue
			}
			place := fmt.Sprintf("%s:%d", file, n+1)
			if revokes(line) {
				return nil, fmt.Errorf("%s: this line revokes a key and cannot be read: %w", place, unreadable)
			}
			db.leftOut = append(db.leftOut, fmt.Sprintf("%s cannot be read: %v", place, unreadable))
			lines[n] = nil
		}
		copies[i] = fmt.Sprintf("%s/%d", dir, i)
		db.original[copies[i]] = file
		if err := os.WriteFile(copies[i], bytes.Join(lines, []byte("\n")), 0o600); err != nil {
			return nil, err
		}
	}
	db.HostKeyDB, err = knownhosts.NewDB(copies...)
	return db, err
}

// checkKnownHost says why the library cannot read a line, which is written to file
// for it.
func checkKnownHost(file string, line []byte) error {
	if err := os.WriteFile(file, line, 0o600); err != nil {
		return err
	}
	_, err := xknownhosts.New(file)
	if err == nil {
		return nil
	}
	why := strings.TrimPrefix(err.Error(), "knownhosts: ")
	why = strings.TrimPrefix(why, file+":1: ")
	return errors.New(strings.TrimPrefix(why, "knownhosts: "))
}

// revokes reports whether a line that cannot be read seems to revoke a key.
func revokes(line []byte) bool {
	return bytes.Contains(bytes.ToLower(bytes.ReplaceAll(line, []byte{0}, nil)), []byte("@revoked"))
}

// unreadable tells of the lines that were left out of files, in parentheses.
func (db *keyDB) unreadable() string {
	const few = 3
	switch n := len(db.leftOut); {
	case n == 0:
		return ""
	case n > few:
		return fmt.Sprintf(" (%s; and %d more lines)", strings.Join(slices.Clone(db.leftOut[:few]), "; "), n-few)
	}
	return " (" + strings.Join(db.leftOut, "; ") + ")"
}
