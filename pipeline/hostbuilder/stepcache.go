package hostbuilder

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/scratch"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/wheel"
)

// maxSteps bounds the cached outputs. One holds a few megabytes.
const maxSteps = 60

// stepCache keeps the outputs of steps under a digest of the toolchain, the step, its
// scripts and the bytes of its inputs. A later run of the same step takes its output from
// there.
type stepCache struct {
	dir string
}

func (b *Builder) stepCache() stepCache { return stepCache{filepath.Join(b.opt.Dir, "steps")} }

// stepKey returns the digest of a step whose inputs are there.
func (r *run) stepKey(s pipeline.Step) (string, error) {
	inputs, texts := map[string]string{}, map[string]string{}
	for _, in := range s.Inputs {
		sum, err := treeSum(r.outputs[in])
		if err != nil {
			return "", err
		}
		inputs[in] = sum
	}
	for _, name := range s.AllScripts() {
		texts[name] = r.plan.Scripts[name]
	}
	text, err := json.Marshal(struct {
		Toolchain       string
		Step            pipeline.Step
		Scripts, Inputs map[string]string
	}{filepath.Base(r.entry.dir), s, texts, inputs})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// restore puts the output cached under key into the empty directory out. It reports whether
// the output is complete.
func (c stepCache) restore(ctx context.Context, key, out string) bool {
	dir := filepath.Join(c.dir, key)
	want, err := os.ReadFile(dir + sumSuffix)
	if err != nil {
		return false
	}
	if os.MkdirAll(filepath.Dir(out), 0o700) != nil || linkTree(ctx, dir, out) != nil {
		_ = scratch.RemoveAll(out) // incomplete
		return false
	}
	if sum, err := treeSum(out); err != nil || sum != string(want) {
		_ = scratch.RemoveAll(out) // damaged
		return false
	}
	now := time.Now()
	_ = os.Chtimes(dir, now, now) // only the order of pruning hangs on it
	return true
}

// sumSuffix ends the name of the file with the digest of a cached output.
const sumSuffix = ".sum"

// save caches the output of a step.
func (c stepCache) save(ctx context.Context, key, out string) error {
	sum, err := treeSum(out)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	unlock, err := waitLock(ctx, filepath.Join(c.dir, lockName), alone, func() {})
	if err != nil {
		return err
	}
	defer unlock()
	dir := filepath.Join(c.dir, key)
	if err := errors.Join(os.RemoveAll(dir+sumSuffix), scratch.RemoveAll(dir)); err != nil {
		return err
	}
	if err := linkTree(ctx, out, dir); err != nil {
		return err
	}
	if err := os.WriteFile(dir+sumSuffix, []byte(sum), 0o600); err != nil {
		return err
	}
	return c.prune()
}

// prune removes the outputs that were not used for the longest time.
func (c stepCache) prune() error {
	sums, err := fs.Glob(os.DirFS(c.dir), "*"+sumSuffix)
	if err != nil {
		return err
	}
	var dirs []string
	for _, sum := range sums {
		dirs = append(dirs, filepath.Join(c.dir, strings.TrimSuffix(sum, sumSuffix)))
	}
	for _, dir := range pipeline.LongUnused(dirs, maxSteps) {
		err = errors.Join(err, os.RemoveAll(dir+sumSuffix), scratch.RemoveAll(dir))
	}
	return err
}

// treeSum returns a digest of the names, kinds and bytes of all files below dir.
func treeSum(dir string) (string, error) {
	h := sha256.New()
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", err
	}
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		what := "folder"
		switch {
		case e.Type()&fs.ModeSymlink != 0:
			if what, err = os.Readlink(path); err != nil {
				return err
			}
		case !e.IsDir():
			if what, _, err = wheel.HashFile(path); err != nil {
				return err
			}
		}
		fmt.Fprintf(h, "%q %v %q\n", name, e.Type(), what)
		return nil
	})
	return hex.EncodeToString(h.Sum(nil)), err
}
