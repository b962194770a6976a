// Command prove compares the ops of a release of DeepSpeed with those that were proven over torch's stable ABI. It proves the ops
// that have changed, and writes the outcome into compat/data. make prove RELEASE=0.19.9 runs it, on x86_64.
//
// An op is proven for x86_64 if its library has the same bytes as in the release before. The others are compared with the ops over torch's
// C++ interface, by the tests that have proven all ops: the numbers that they compute (TestFullStable), and what they
// ask CUDA for (TestFullStableLaunches). An op that fails is a changed one, which wheels for every torch do without.
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/compat/evidence"
	"github.com/dsbuild/dsbuild/internal/pyindex"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/wheel"
)

func main() {
	index := flag.String("index", "https://pypi.org/simple", "the package `index` that has the release")
	flag.Usage = func() { fmt.Fprintln(flag.CommandLine.Output(), "usage: prove [-index URL] RELEASE|latest") }
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *index, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "prove:", err)
		os.Exit(1) //nolint:gocritic // stop only ends the notification
	}
}

func run(ctx context.Context, index, release string) error {
	tables, err := compat.NewTables()
	if err != nil {
		return err
	}
	r, err := fetch(ctx, index, release)
	if err != nil {
		return err
	}
	changed := sortedOps(tables, tables.Evidence.Judge(r.sources)[wheel.X86])
	p := prover{release: r, tables: tables, run: command}
	accepted, err := p.prove(ctx, changed)
	if err != nil {
		return err
	}
	for _, op := range changed {
		fmt.Printf("%s: %s\n", op, accepted[op])
	}
	fmt.Printf("DeepSpeed %s: %d of %d ops are as they were proven, %d were proven now, %d are not proven\n", r.version,
		len(tables.Evidence.Ops)-len(changed), len(tables.Evidence.Ops), proven(accepted), len(changed)-proven(accepted))
	return nil
}

func proven(outcomes map[string]outcome) int {
	n := 0
	for _, o := range outcomes {
		if len(o.machines) > 0 {
			n++
		}
	}
	return n
}

// release is a release of DeepSpeed on a package index.
type release struct {
	version, sha256 string
	sources         *evidence.Sources
}

// fetch downloads the source distribution of a release.
func fetch(ctx context.Context, index, version string) (release, error) {
	network, err := pipeline.NewNetwork(pipeline.NetworkOptions{IndexURL: index}, os.Getenv)
	if err != nil {
		return release{}, err
	}
	if version == compat.Latest {
		tables, err := compat.NewTables()
		if err != nil {
			return release{}, err
		}
		found, err := network.Releases().DeepSpeed(ctx, tables, version)
		if err != nil {
			return release{}, err
		}
		version = found.Version
	}
	client := pyindex.New(network.Transport())
	files, err := client.Files(ctx, index, "deepspeed")
	if err != nil {
		return release{}, err
	}
	i := slices.IndexFunc(files, func(f pyindex.File) bool { return f.Version == version && f.Wheel == nil && f.SHA256 != "" })
	if i < 0 {
		return release{}, fmt.Errorf("no source distribution of DeepSpeed %s on %s", version, index)
	}
	sources, err := pipeline.ReadSdist(ctx, client, files[i])
	if err != nil {
		return release{}, err
	}
	return release{version, files[i].SHA256, sources}, nil
}

// sortedOps lists ops in the order of the table, without those that the release lacks.
func sortedOps(tables *compat.Tables, changed map[string]string) []string {
	var out []string
	for _, op := range tables.Ops {
		if why := changed[op.Name]; why != "" && !strings.HasPrefix(why, "op_builder: no op") {
			out = append(out, op.Name)
		}
	}
	return out
}

// clone returns a table that can be changed.
func clone(t evidence.Table) evidence.Table {
	t.Ops, t.Files = maps.Clone(t.Ops), maps.Clone(t.Files)
	for op, proofs := range t.Ops {
		t.Ops[op] = slices.Clone(proofs)
	}
	for name, digests := range t.Files {
		t.Files[name] = maps.Clone(digests)
	}
	return t
}
