package main

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/compat/evidence"
	"github.com/dsbuild/dsbuild/internal/testkit/child"
	"github.com/dsbuild/dsbuild/wheel"
)

// outcome is what became of an op: for which machines it is proven now, and how, or why not.
type outcome struct {
	machines []string
	how      string
}

func (o outcome) String() string {
	if len(o.machines) == 0 {
		return "not proven: " + o.how
	}
	return "proven for " + strings.Join(o.machines, " and ") + ": " + o.how
}

// prover proves ops of a release.
type prover struct {
	release
	tables *compat.Tables
	// run executes a program in the top folder of the checkout, and returns what it printed.
	run func(ctx context.Context, environ []string, args ...string) (string, error)
}

// command runs a program; its output goes to standard error, too.
func command(ctx context.Context, environ []string, args ...string) (string, error) {
	fmt.Fprintln(os.Stderr, "==>", strings.Join(args, " "))
	cmd := child.Command(ctx, args[0], args[1:]...)
	var out bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), environ...), io.MultiWriter(&out, os.Stderr), io.MultiWriter(&out, os.Stderr)
	err := cmd.Run()
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	return out.String(), err
}

// prove proves ops and writes the tables. Until it has, the tables of the checkout say that all of the ops are proven, so that
// dsbuild builds them; if it fails, they are as before.
func (p *prover) prove(ctx context.Context, ops []string) (outcomes map[string]outcome, err error) {
	before := map[string][]byte{}
	for _, name := range []string{evidenceFile, deepSpeedFile} {
		if before[name], err = os.ReadFile(name); err != nil {
			return nil, err
		}
	}
	defer func() {
		for name, text := range before {
			if err != nil {
				_ = os.WriteFile(name, text, 0o644)
			}
		}
	}()
	table := clone(p.tables.Evidence)
	if len(ops) > 0 {
		claimed := clone(table)
		for _, op := range ops {
			if err := claimed.Accept(p.sources, op, p.version, evidence.Machines()...); err != nil {
				return nil, err
			}
		}
		if err := p.write(claimed, before); err != nil {
			return nil, err
		}
		if _, err := p.run(ctx, nil, "make", "build"); err != nil {
			return nil, err
		}
		if outcomes, err = p.outcomes(ctx, ops); err != nil {
			return nil, err
		}
	}
	for op, o := range outcomes {
		if len(o.machines) == 0 {
			continue
		}
		if err := table.Accept(p.sources, op, p.version, o.machines...); err != nil {
			return nil, err
		}
	}
	return outcomes, p.write(table, before)
}

// outcomes compares the libraries of ops with those that were proven, and tests those that differ.
func (p *prover) outcomes(ctx context.Context, ops []string) (map[string]outcome, error) {
	out := map[string]outcome{}
	now, err := p.libraries(ctx, p.version, ops)
	if err != nil {
		return nil, err
	}
	byRelease := map[string][]string{}
	for _, op := range ops {
		if now[op] == "" {
			out[op] = outcome{nil, "its wheel cannot be built, or fails the smoke test"}
			continue
		}
		last := p.tables.Evidence.Ops[op][0].DeepSpeed
		byRelease[last] = append(byRelease[last], op)
	}
	for last, ops := range byRelease {
		before, err := p.libraries(ctx, last, ops)
		if err != nil {
			return nil, err
		}
		for _, op := range ops {
			if now[op] == before[op] {
				out[op] = outcome{[]string{wheel.X86}, "its library has the same bytes as in DeepSpeed " + last}
			}
		}
	}
	rest := slices.DeleteFunc(slices.Clone(ops), func(op string) bool { return out[op].how != "" })
	if len(rest) == 0 {
		return out, nil
	}
	tested, err := p.test(ctx, rest)
	for op, o := range tested {
		out[op] = o
	}
	return out, err
}

// libraries builds ops of a release over the stable ABI, for one GPU, and returns the digest of each library. If they
// cannot be built together, it builds each by itself. The result lacks those that fail; it is an error if all do.
func (p *prover) libraries(ctx context.Context, version string, ops []string) (map[string]string, error) {
	all, err := p.build(ctx, version, ops)
	if err == nil || ctx.Err() != nil || len(ops) < 2 {
		return all, err
	}
	all = map[string]string{}
	for _, op := range ops {
		one, alone := p.build(ctx, version, []string{op})
		if ctx.Err() != nil {
			return nil, alone
		}
		if alone == nil {
			all[op] = one[op]
		}
	}
	if len(all) == 0 {
		return nil, err
	}
	return all, nil
}

// build builds ops into one wheel, and returns the digest of each library.
func (p *prover) build(ctx context.Context, version string, ops []string) (map[string]string, error) {
	dir, err := os.MkdirTemp("", "prove-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if _, err := p.run(ctx, nil, "bin/dsbuild", "wheel", "--deepspeed", version, "--abi", "stable", "--ops", strings.Join(ops, ","),
		"--arch", "8.0", "-o", dir); err != nil {
		return nil, fmt.Errorf("dsbuild wheel --deepspeed %s --ops %s: %w", version, strings.Join(ops, ","), err)
	}
	wheels, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	if err != nil || len(wheels) != 1 {
		return nil, fmt.Errorf("%d wheels of DeepSpeed %s, want one: %w", len(wheels), version, err)
	}
	return digestsOf(wheels[0])
}

// digestsOf returns a digest of each op's libraries in a wheel: one, or one for each CUDA or CPU level.
func digestsOf(file string) (map[string]string, error) {
	archive, err := zip.OpenReader(file)
	if err != nil {
		return nil, err
	}
	defer archive.Close()
	out := map[string]string{}
	slices.SortFunc(archive.File, func(a, b *zip.File) int { return strings.Compare(a.Name, b.Name) })
	for _, f := range archive.File {
		name, variant, _ := strings.Cut(path.Base(f.Name), ".") // libfused_adam_op.so, libfused_adam_op.cu13.so
		name, is := strings.CutSuffix(name, "_op")
		if !is || path.Ext(f.Name) != ".so" {
			continue
		}
		r, err := f.Open()
		if err != nil {
			return nil, err
		}
		sum := sha256.New()
		if _, err := io.Copy(sum, r); err != nil {
			return nil, err
		}
		op := strings.TrimPrefix(strings.TrimPrefix(name, "lib"), "kernels") // as devicecode.py names them
		out[op] += fmt.Sprintf("%s %x\n", variant, sum.Sum(nil))
	}
	return out, nil
}

// The tests that prove ops: what they compute, and, with a subtest for each op with device code, what they ask CUDA for.
const (
	stableTest   = "TestFullStable"
	launchesTest = "TestFullStableLaunches"
)

// test runs the tests that have proven all ops. A proof holds for both machines: the sources are the same. If ops fail
// stableTest together, each is tested by itself, so that one that has changed does not take the others with it.
func (p *prover) test(ctx context.Context, ops []string) (map[string]outcome, error) {
	out := map[string]outcome{}
	for _, op := range ops {
		out[op] = outcome{evidence.Machines(), stableTest}
	}
	if !p.computesTheSame(ctx, ops) {
		for _, op := range ops {
			if len(ops) == 1 || !p.computesTheSame(ctx, []string{op}) {
				out[op] = outcome{nil, stableTest + " did not pass"}
			}
		}
	}
	var launched []string
	for _, op := range p.tables.Ops {
		if op.StableState() == compat.Launched && len(out[op.Name].machines) > 0 {
			launched = append(launched, op.Name)
		}
	}
	if len(launched) > 0 {
		passes := p.passes(ctx, launched, launchesTest, "./fakecuda", "-C", "ci")
		for _, op := range launched {
			if test := launchesTest + "/" + op; slices.Contains(passes, test) {
				out[op] = outcome{evidence.Machines(), stableTest + " and " + test}
			} else {
				out[op] = outcome{nil, test + " did not pass"}
			}
		}
	}
	return out, context.Cause(ctx)
}

// computesTheSame reports whether ops pass stableTest together.
func (p *prover) computesTheSame(ctx context.Context, ops []string) bool {
	all := slices.Clone(ops)
	for _, op := range []string{"cpu_adam", "utils", "fused_adam"} { // the test loads them in any case
		if !slices.Contains(ops, op) {
			all = append(all, op)
		}
	}
	return slices.Contains(p.passes(ctx, all, stableTest, "./cmd/dsbuild"), stableTest)
}

// passed matches a test that has passed.
var passed = regexp.MustCompile(`(?m)^ *--- PASS: (\S+)`)

// passes runs a test for ops, and returns the names of the test and its subtests that passed. where are flags of go test that
// come first.
func (p *prover) passes(ctx context.Context, ops []string, test, folder string, where ...string) []string {
	environ := []string{"DSBUILD_TEST_DEEPSPEED=" + p.version, "DSBUILD_TEST_OPS=" + strings.Join(ops, ","), "CI=1"}
	command := slices.Concat([]string{"go", "test"}, where,
		[]string{"-vet=off", "-tags", "full", "-count=1", "-v", "-timeout", "55m", "-run", "^" + test + "$", folder})
	said, _ := p.run(ctx, environ, command...) //nolint:errcheck // the output says what failed
	var names []string
	for _, m := range passed.FindAllStringSubmatch(said, -1) {
		names = append(names, m[1])
	}
	return names
}

// Tables that the command writes.
const (
	evidenceFile  = "compat/data/evidence.json"
	deepSpeedFile = "compat/data/deepspeed.json"
)

// write writes a table of evidence, and the row of the release. A table without another proof stays as it is.
func (p *prover) write(table evidence.Table, before map[string][]byte) error {
	text, err := formatEvidence(table, p.tables.Origins["evidence"], time.Now().UTC().Format(time.DateOnly))
	if err != nil {
		return err
	}
	if same, err := formatEvidence(p.tables.Evidence, p.tables.Origins["evidence"], time.Now().UTC().Format(time.DateOnly)); err == nil && same == text {
		text = string(before[evidenceFile])
	}
	rows, err := setRelease(string(before[deepSpeedFile]), compat.DeepSpeed{Version: p.version, SHA256: p.sha256, Changed: table.Judge(p.sources)})
	if err != nil {
		return err
	}
	if err := os.WriteFile(evidenceFile, []byte(text), 0o644); err != nil {
		return err
	}
	return os.WriteFile(deepSpeedFile, []byte(rows), 0o644)
}
