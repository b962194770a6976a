// Command full is `make test-full`: the long tests of dsbuild's promises.
//
//	go run ./ci/full           # all parts
//	go run ./ci/full inside    # one of them
//
// It prepares the needs of a part (tools, real wheels, an engine, a wheel of this checkout). Then
// it runs the tests called TestFull and the part's name, in files *_full_test.go with the build
// tag full. If a part passes, it writes the results into docs/testing.md.
package main

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/adrg/xdg"

	"github.com/dsbuild/dsbuild/ci/parts"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(newProgram(filepath.Join(xdg.CacheHome, "dsbuild")).Run(ctx, os.Args[1:], os.Stderr))
}

// newProgram describes the command; cache is dsbuild's folder in the user's cache.
func newProgram(cache string) parts.Program {
	b := &bench{dir: filepath.Join(cache, "full")}
	return parts.Program{
		Name: "test-full", Parts: b.allParts(), Dir: b.dir, Begin: b.begin,
		Limit: time.Hour, // as docs/design.md promises
		Document: parts.Document{
			File:  "docs/testing.md",
			Begin: "<!-- results of make test-full: written by ci/full -->\n",
			End:   "<!-- end -->\n",
		},
	}
}
