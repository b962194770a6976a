package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/scratch"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/planner"
	"github.com/dsbuild/dsbuild/release/signing"
	"github.com/dsbuild/dsbuild/wheel"
)

// rebuildFlags are WHEEL and the flags of dsbuild rebuild.
type rebuildFlags struct {
	build   buildFlags
	network networkFlags

	wheel string
	base  string
}

func newRebuildCommand(a *app) *cobra.Command {
	var f rebuildFlags
	cmd := &cobra.Command{
		Use:   "rebuild WHEEL",
		Short: "Rebuild a wheel from its manifest and compare the bytes",
		Long: `Rebuild a wheel from its manifest and compare the bytes.

The sources, base, versions, ops and targets are the same; everything is
recompiled without the wheel cache, and the new wheel is not kept. A wheel built
on a root file system tar, or directly on a host, requires the same one, whose
digest is checked.

With --sign, an identical rebuild adds a signature to the provenance attestation
next to the wheel, as policies with "builders: 2" require. If the bytes differ,
the differences are listed, nothing is signed, and the exit code is 4.`,
		Annotations: map[string]string{
			helpSeeAlso: `"dsbuild sign" signs without a rebuild; "dsbuild verify-wheel" checks a wheel against its metadata.`,
		},
		Example: `  # Reproduce a wheel, and sign it as a second builder
  $ dsbuild rebuild --sign ~/.ssh/id_ed25519 dist/deepspeed-*.whl`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.wheel = args[0]
			return runRebuild(cmd.Context(), a, f)
		},
	}
	f.build.addBuilder(cmd)
	f.network.addForBuild(cmd)
	cmd.Flags().StringVar(&f.base, "base", "",
		"`TAR` Root file system tar that the wheel was built on")
	inGroup(cmd, groupBuild, "base")
	return cmd
}

// runRebuild builds a wheel again and compares it with the first one.
func runRebuild(ctx context.Context, a *app, f rebuildFlags) (err error) {
	network, err := f.network.read()
	if err != nil {
		return err
	}
	defer func() { err = network.Error(err) }()
	v, err := wheel.Verify(ctx, f.wheel)
	if err != nil {
		return noWheel(err)
	}
	if err := v.Err(); err != nil {
		return err
	}
	if v.Manifest == nil {
		return usagef("%s has no manifest: not built by dsbuild", filepath.Base(f.wheel))
	}
	m := *v.Manifest
	source, request, err := planner.RebuildRequest(m)
	if err != nil {
		return usagef("cannot rebuild %s: %w", m.Name, err)
	}
	request.Base = cmp.Or(f.base, request.Base)
	sign, done, err := a.wheelSigner(ctx, f.build.sign)
	if err != nil {
		return err
	}
	defer done()
	if sign != nil { // before a build of minutes
		if signed, err := signing.ReadSigned(f.wheel); err != nil || signed.Statement == "" {
			return usagef("--sign: no provenance attestation next to %s", m.Name)
		}
	}
	tmp, err := scratch.New("")
	if err != nil {
		return err
	}
	defer tmp.Close()
	again, err := f.buildAgain(ctx, a, network, source, request, m, tmp.Path)
	if err != nil {
		return err
	}
	if again.SHA256 != v.SHA256 {
		return differError(ctx, f.wheel, again.Path)
	}
	_, err = fmt.Fprintf(a.stdout, "%s is reproducible: the rebuild has the same sha256 %s\n", ui.Clean(m.Name), v.SHA256)
	if err != nil || sign == nil {
		return err
	}
	return pipeline.SignExported(ctx, f.wheel, sign)
}

// buildAgain rebuilds the wheel of a manifest into a directory, without the store.
func (f rebuildFlags) buildAgain(
	ctx context.Context, a *app, network pipeline.Network, source string, request wheel.Request, m wheel.Manifest,
	dir string,
) (wheel.Artifact, error) {
	f.build.sign, f.build.noCache = "", true // the caller signs the first wheel
	tools, err := f.build.open(ctx, a, network, planner.Options{})
	if err != nil {
		return wheel.Artifact{}, err
	}
	defer tools.Close()
	plans, err := tools.planner(ctx, source)
	if err != nil {
		return wheel.Artifact{}, err
	}
	plan, err := plans.Plan(ctx, "", request)
	if err != nil {
		return wheel.Artifact{}, err
	}
	if err := planner.CheckRebuild(plan, m); err != nil {
		wrong := fmt.Errorf("cannot rebuild %s: %w", m.Name, err)
		return wheel.Artifact{}, &usageError{err: wrong, hint: fault.Hint(err)}
	}
	if plan.Digest != m.PlanDigest {
		a.reporter.Warn("dsbuild %s plans this wheel differently from the version that built it: "+
			"different bytes do not mean that the builder is at fault", a.version)
	}
	tools.runner.Dir = filepath.Join(dir, "dist")
	tools.runner.Store = pipeline.Store{Dir: filepath.Join(dir, "store"), Keep: 1}
	return tools.runner.Run(ctx, plan)
}

// differError lists the differences between a wheel and its rebuild.
func differError(ctx context.Context, file, again string) error {
	differs, err := wheel.Diff(ctx, file, again)
	if err != nil {
		return err
	}
	if filepath.Base(file) != filepath.Base(again) {
		differs = append([]string{"file name " + filepath.Base(again)}, differs...)
	}
	if len(differs) == 0 {
		differs = []string{"same files, packed differently"}
	}
	const most = 10
	if len(differs) > most {
		differs = append(differs[:most:most], fmt.Sprintf("and %d more", len(differs)-most))
	}
	err = errors.New(filepath.Base(file) + " is not reproducible: the rebuild differs: " + strings.Join(differs, "; "))
	err = fault.WithHint(err,
		"compare the two manifests and attestations for a different gcc or package in the base")
	return fault.WithCode(err, exitWheel)
}
