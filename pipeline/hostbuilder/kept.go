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

// keepSteps is of how many steps the outputs are kept. One holds a few megabytes.
const keepSteps = 60

// What a step leaves is kept by all that it was made of: the toolchain, the step
// itself, its scripts, and the bytes of its inputs. The same step once more takes it
// from there, as an engine does with what it has run.

func (b *Builder) stepsDir() string { return filepath.Join(b.opt.Dir, "steps") }

// stepKey names the output of a step whose inputs are there.
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

// takeStep puts what is kept under key into the empty directory out, and reports
// whether that was all of it.
func (r *run) takeStep(ctx context.Context, key, out string) bool {
	dir := filepath.Join(r.stepsDir(), key)
	want, err := os.ReadFile(dir + sumSuffix)
	if err != nil {
		return false
	}
	if os.MkdirAll(filepath.Dir(out), 0o700) != nil || linkTree(ctx, dir, out) != nil {
		_ = scratch.RemoveAll(out) // what is there by halves is not there
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

// sumSuffix ends the name of the file that says what a kept output must be.
const sumSuffix = ".sum"

// keepStep keeps the output of a step.
func (r *run) keepStep(ctx context.Context, key, out string) error {
	sum, err := treeSum(out)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.stepsDir(), 0o700); err != nil {
		return err
	}
	unlock, err := waitLock(ctx, filepath.Join(r.stepsDir(), lockName), alone, func() {})
	if err != nil {
		return err
	}
	defer unlock()
	dir := filepath.Join(r.stepsDir(), key)
	if err := errors.Join(os.RemoveAll(dir+sumSuffix), scratch.RemoveAll(dir)); err != nil {
		return err
	}
	if err := linkTree(ctx, out, dir); err != nil {
		return err
	}
	if err := os.WriteFile(dir+sumSuffix, []byte(sum), 0o600); err != nil {
		return err
	}
	return r.pruneSteps()
}

// pruneSteps removes those that were not used for longest.
func (r *run) pruneSteps() error {
	sums, err := filepath.Glob(filepath.Join(r.stepsDir(), "*"+sumSuffix))
	if err != nil {
		return err
	}
	var dirs []string
	for _, sum := range sums {
		dirs = append(dirs, strings.TrimSuffix(sum, sumSuffix))
	}
	for _, dir := range longUnused(dirs, keepSteps) {
		err = errors.Join(err, os.RemoveAll(dir+sumSuffix), scratch.RemoveAll(dir))
	}
	return err
}

// treeSum is a digest of the names, kinds and bytes of all files below dir.
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
