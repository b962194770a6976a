package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline/engine"
)

// engineVersion is the Dagger release in ci/engine/tools/go.mod. The client library in the root
// go.mod must be of the same release.
const engineVersion = engine.Version

// tool is a program built from ci/engine/tools.
type tool struct{ pkg, built, name string }

func allTools() []tool {
	return []tool{
		{"github.com/dagger/dagger/cmd/engine", "engine", "dagger-engine"},
		{"github.com/dagger/dagger/cmd/dagger", "dagger", "dagger"},
		{"github.com/dagger/dagger/cmd/init", "init", "dagger-init"},
		{"github.com/dagger/dagger/cmd/dnsname", "dnsname", "dnsname"},
	}
}

func toolPackages() (pkgs []string) {
	for _, t := range allTools() {
		pkgs = append(pkgs, t.pkg)
	}
	return pkgs
}

// buildFlags returns the build flags of the four tools: the Makefile's, and a version.
func buildFlags() []string {
	const v = "github.com/dagger/dagger/engine."
	return []string{"-mod=readonly", "-trimpath", "-gcflags=all=-dwarf=false", "-ldflags", "-s -w -X " + v + "Version=" + engineVersion + " -X " + v + "Tag=" + engineVersion}
}

func toolsPiece(l Layout, con *console, src string) (piece, error) {
	inputs, err := treeInputs(src)
	if err != nil {
		return piece{}, err
	}
	inputs = append(inputs, buildFlags()...)
	p := piece{name: "tools", inUse: true, digest: digestOf(append(inputs, runtime.Version(), runtime.GOARCH)...)}
	for _, t := range allTools() {
		p.outputs = append(p.outputs, l.Bin(t.name))
	}
	p.build = func(ctx context.Context) error { return buildTools(ctx, l, con, src) }
	p.place = func() error {
		if err := os.MkdirAll(l.path("bin"), 0o755); err != nil {
			return err
		}
		for _, t := range allTools() {
			if err := os.Rename(filepath.Join(l.tmp("tools"), t.built), l.Bin(t.name)); err != nil {
				return err
			}
		}
		return nil
	}
	return p, nil
}

// treeInputs returns the names and contents of all files below dir.
func treeInputs(dir string) (inputs []string, err error) {
	err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(p)
		rel, _ := filepath.Rel(dir, p)
		inputs = append(inputs, rel, string(b))
		return err
	})
	return inputs, err
}

// buildTools compiles the programs, and downloads their sources. dagger-init must be static: it runs
// in every container, with any libc.
func buildTools(ctx context.Context, l Layout, con *console, src string) error {
	scratch := l.tmp("go") // a /tmp in memory may be too small
	if err := errors.Join(os.MkdirAll(scratch, 0o755), os.MkdirAll(l.tmp("tools"), 0o755)); err != nil {
		return err
	}
	con.printLine("tools", "compiling the 4 programs of the Dagger engine %s: some 1,600 packages, without those in the Go cache", engineVersion)
	said := &output{}
	stop := con.reportProgress("tools", func() string {
		downloaded := said.count("go: downloading ")
		return fmt.Sprintf("%d modules downloaded, %d packages compiled", downloaded, said.count("")-downloaded)
	})
	defer stop()
	args := append([]string{"go", "build", "-v"}, buildFlags()...)
	err := command{
		args: append(append(args, "-o", l.tmp("tools")+"/"), toolPackages()...), dir: src,
		env: []string{"CGO_ENABLED=0", "GOWORK=off", "GOTMPDIR=" + scratch}, log: l.logOf("tools-build"), line: said.add,
	}.runCommand(ctx)
	if err != nil {
		return goHint(fmt.Errorf("compiling: %w", err))
	}
	return nil
}

func goHint(err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	return fault.WithHint(err, "check GOPROXY (go env GOPROXY), the disk of the Go caches (go env GOCACHE GOMODCACHE) and the Go version (1.26 or newer); then retry: what was compiled is kept")
}

// output collects the output of a running command.
type output struct {
	mu    sync.Mutex
	lines []string
}

func (o *output) add(line string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lines = append(o.lines, line)
}

// count counts the lines with this prefix.
func (o *output) count(prefix string) (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, line := range o.lines {
		if strings.HasPrefix(line, prefix) {
			n++
		}
	}
	return n
}

// last returns the latest line, shortened.
func (o *output) last() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.lines) == 0 {
		return ""
	}
	return ui.Shorten(o.lines[len(o.lines)-1], 100)
}
