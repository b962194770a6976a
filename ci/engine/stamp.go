package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/atomicfile"
)

// piece is a part of the installation that is built separately. It is current if its stamp holds
// the digest of its inputs and its outputs exist. Otherwise it is built again, also after a
// build that was killed.
type piece struct {
	name    string
	digest  string
	outputs []string                    // must exist
	build   func(context.Context) error // builds under temporary names
	place   func() error                // moves the result to its place
	inUse   bool                        // a running engine uses it, so the engine must stop before it is placed
}

// digestOf returns the digest of a list of inputs. Moving a character from one input to the next
// changes the digest.
func digestOf(inputs ...string) string {
	h := sha256.New()
	for _, s := range inputs {
		fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func (l Layout) isCurrent(p piece) bool {
	b, err := os.ReadFile(l.stamp(p.name))
	if err != nil || strings.TrimSpace(string(b)) != p.digest {
		return false
	}
	for _, o := range p.outputs {
		if _, err := os.Lstat(o); err != nil {
			return false
		}
	}
	return true
}

// make builds the part, without touching the installed one.
func (p piece) make(ctx context.Context, con *console) error {
	began := time.Now()
	if err := p.build(ctx); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	con.printLine(p.name, "done in %.0f s", time.Since(began).Seconds())
	return nil
}

// installPiece puts a new part into its place and stamps it. It removes the old stamp first, so
// a kill at any point leads to a new build, and never to a mix.
func (l Layout) installPiece(p piece) error {
	if err := os.MkdirAll(l.path("stamps"), 0o755); err != nil {
		return err
	}
	if err := os.Remove(l.stamp(p.name)); err != nil && !os.IsNotExist(err) {
		return err
	}
	if err := p.place(); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return writeFile(l.stamp(p.name), p.digest+"\n", 0o644)
}

// writeFile writes a file atomically.
func writeFile(path, text string, mode os.FileMode) error {
	return atomicfile.Write(path, strings.NewReader(text), mode)
}

// removeTemporary empties the directory of unfinished parts. It fails if a file system is mounted
// below it, because such a mount shows the host's own files.
func (l Layout) removeTemporary() error {
	dir := l.path("tmp")
	b, err := os.ReadFile(filepath.Join(l.Proc, "self/mountinfo"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			return fmt.Errorf("%s is mounted: an earlier installation was not cleaned up", f[4])
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.MkdirAll(dir, 0o755)
}
