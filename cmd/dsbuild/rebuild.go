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

func newRebuildCommand(a *app) *cobra.Command {
	var o wheelOptions
	var base string
	cmd := &cobra.Command{
		Use:   "rebuild WHEEL",
		Short: "Build a wheel again from its manifest, and compare the bytes",
		Long: `rebuild builds a wheel again from what its manifest says: the same sources,
base, versions, operators and targets. It takes nothing from the store, compiles
everything, and says whether the two wheels have the same bytes; the new one is
not kept. A wheel that was built on a root file system tar, or on a machine,
needs the same one: dsbuild compares the digests.

With --sign it then signs the statement beside the wheel: a second builder's
signature, which a policy with builders: 2 asks for. A wheel with other bytes is
not signed: the differences are listed, and the exit code is 4.`,
		Example: `  dsbuild rebuild --sign ~/.ssh/id_ed25519 dist/deepspeed-*.whl`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.readBuildFlags(cmd.Flags()); err != nil {
				return err
			}
			o.noCache = true
			return o.site.Error(runRebuild(cmd.Context(), a, o, base, args[0]))
		},
	}
	cmd.Flags().StringVar(&base, "base", "", "the root file system `TAR` that the wheel was built on, if it is not the engine's own")
	o.builderFlags(cmd.Flags())
	return cmd
}

// runRebuild builds a wheel again and compares it with the first one.
func runRebuild(ctx context.Context, a *app, o wheelOptions, base, file string) error {
	v, err := wheel.Verify(ctx, file)
	if err != nil {
		return noWheel(err)
	}
	if err := v.Err(); err != nil {
		return err
	}
	if v.Manifest == nil {
		return usagef("%s has no manifest: dsbuild did not build it", filepath.Base(file))
	}
	m := *v.Manifest
	request, err := planner.RebuildRequest(m)
	if err != nil {
		return usagef("%s cannot be built again: %w", m.Name, err)
	}
	request.Base = cmp.Or(base, request.Base)
	sign, done, err := a.wheelSigner(ctx, o.sign)
	if err != nil {
		return err
	}
	defer done()
	if sign != nil { // before a build of minutes
		if signed, err := signing.ReadSigned(file); err != nil || signed.Statement == "" {
			return usagef("--sign: there is no statement beside %s", m.Name)
		}
	}
	tmp, err := scratch.New("")
	if err != nil {
		return err
	}
	defer tmp.Close()
	again, err := buildAgain(ctx, a, o, request, m, tmp.Path)
	if err != nil {
		return err
	}
	if again.SHA256 != v.SHA256 {
		return differError(ctx, file, again.Path)
	}
	_, err = fmt.Fprintf(a.stdout, "%s has the same bytes when it is built again: sha256 %s\n", ui.Clean(m.Name), v.SHA256)
	if err != nil || sign == nil {
		return err
	}
	return pipeline.SignPlaced(ctx, file, sign)
}

// buildAgain builds the wheel of a manifest into a folder, without the store.
func buildAgain(ctx context.Context, a *app, o wheelOptions, request planner.Request, m wheel.Manifest, dir string) (wheel.Artifact, error) {
	o.sign = "" // the caller signs the first wheel
	tools, err := o.openBuild(ctx, a)
	if err != nil {
		return wheel.Artifact{}, err
	}
	defer tools.Close()
	plan, err := tools.plans.Plan(ctx, request)
	if err != nil {
		return wheel.Artifact{}, err
	}
	if err := planner.CheckRebuild(plan, m); err != nil {
		return wheel.Artifact{}, &usageError{err: fmt.Errorf("%s cannot be built again: %w", m.Name, err), hint: fault.Hint(err)}
	}
	if plan.Digest != m.PlanDigest {
		a.reporter.Warn("this dsbuild (%s) plans the wheel in another way than the one that built it: other bytes say nothing about its builder", a.version)
	}
	tools.runner.Dir, tools.runner.Store = filepath.Join(dir, "dist"), pipeline.Store{Dir: filepath.Join(dir, "store"), Keep: 1}
	return tools.runner.Run(ctx, plan)
}

// differError names the differences between a wheel and its rebuild.
func differError(ctx context.Context, file, again string) error {
	differs, err := wheel.Differ(ctx, file, again)
	if err != nil {
		return err
	}
	if filepath.Base(file) != filepath.Base(again) {
		differs = append([]string{"its name is " + filepath.Base(again)}, differs...)
	}
	if len(differs) == 0 {
		differs = []string{"the same files, packed in another way"}
	}
	const most = 10
	if len(differs) > most {
		differs = append(differs[:most:most], fmt.Sprintf("and %d more", len(differs)-most))
	}
	err = errors.New(filepath.Base(file) + " has other bytes when it is built again: " + strings.Join(differs, "; "))
	return fault.WithCode(fault.WithHint(err, "compare the two manifests and statements: another gcc or package in the base changes code"), exitWheel)
}
