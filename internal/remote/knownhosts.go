package remote

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/skeema/knownhosts"
	xknownhosts "golang.org/x/crypto/ssh/knownhosts"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// hostKeys reads known_hosts files, each set of files only once, because a thousand nodes share one
// file of a thousand lines. It never writes to these files.
type hostKeys struct {
	mu sync.Mutex
	db map[string]*keyDB
}

// keyDB is the readable part of known_hosts files.
type keyDB struct {
	*knownhosts.HostKeyDB
	// original maps the copy of a file to the user's file.
	original map[string]string
	// leftOut holds the position and the error of each unreadable line.
	leftOut []string
}

// fileOf returns the user's file that holds a known key.
func (db *keyDB) fileOf(k xknownhosts.KnownKey) string {
	if file, ok := db.original[k.Filename]; ok {
		return file
	}
	return k.Filename
}

// load returns the keys in files. The sizes and times of the files are part of the cache key, so
// load sees a key that the user accepts during the run.
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
		return nil, fault.WithHint(fmt.Errorf("%w: %w", ErrHostKey, err), "fix or remove that line")
	}
	h.db = map[string]*keyDB{id: db} // the older state is no longer needed
	return db, nil
}

// loadReadable reads files without their invalid lines, as OpenSSH does. The library fails on an
// invalid line, so loadReadable passes it copies of the files.
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
			if bytes.Contains(bytes.ToLower(bytes.ReplaceAll(line, []byte{0}, nil)), []byte("@revoked")) {
				return nil, fmt.Errorf("%s: invalid @revoked line: %w", place, unreadable)
			}
			db.leftOut = append(db.leftOut, fmt.Sprintf("ignoring %s: %v", place, unreadable))
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

// checkKnownHost returns the library's error for a line, or nil. It writes the line to file for the
// library.
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

// unreadable describes the ignored lines, in parentheses.
func (db *keyDB) unreadable() string {
	const few = 3
	switch n := len(db.leftOut); {
	case n == 0:
		return ""
	case n > few:
		return fmt.Sprintf(" (%s; and %d more lines)", strings.Join(db.leftOut[:few], "; "), n-few)
	}
	return " (" + strings.Join(db.leftOut, "; ") + ")"
}
