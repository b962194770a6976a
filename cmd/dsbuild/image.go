package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet/deploy/wheels"
	"github.com/dsbuild/dsbuild/internal/each"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/release/image"
)

func newImageCommand(a *app) *cobra.Command {
	var base, output, name string
	var force, dryRun, asJSON bool
	var named []string            // files and folders of wheels
	facts := map[string]*string{} // about the base, by name
	cmd := &cobra.Command{
		Use:   "image --base IMAGE|TAR|FOLDER -o IMAGE|TAR",
		Short: "Put a wheel, installed, as one layer on a container image",
		Long: `image installs a wheel into a container image: it adds one layer with the files
that pip install --no-deps would write, without byte code, to the image of
--base. It runs nothing and unpacks nothing. A registry takes over the layers of
a base that it has.

dsbuild first checks that the wheel fits the base's Python, torch, CUDA, glibc
and machine, as deploy checks a node. It reads these from the files of a base on
disk. For a base in a registry it reads dsbuild's labels, and the layers if
these do not tell everything. If it does not find a value, it names the flag
that sets it. dsbuild never guesses a value. A wheel that has a file of anything
else in the base is refused.

-o is an image in a registry (HOST/NAME:TAG) or a file NAME.tar for docker load,
podman load and Apptainer. The same base, wheel and dsbuild give the same
digest; SOURCE_DATE_EPOCH sets the time of all files.`,
		Example: `  dsbuild image --base registry.example.org/torch:2.15 -o registry.example.org/train:1
  dsbuild image --base base.tar --wheel dist -o train.tar --name train:1`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			switch {
			case base == "":
				return usagef("--base is missing: the image on which the wheel goes")
			case output == "" && !dryRun:
				return usagef("-o is missing: the image to make")
			}
			opt := image.Options{Base: base, Output: output, Name: name, Force: force, Given: map[string]string{}}
			opt.Note = func(text string) { a.reporter.Note("%s", text) }
			for fact, value := range facts {
				opt.Given[fact] = *value
			}
			if opt.Time, err = sourceDate(); err != nil {
				return err
			}
			if opt.Tables, err = compat.NewTables(); err != nil {
				return err
			}
			if opt.Wheels, err = image.LoadWheels(cmd.Context(), named, wheels.DefaultCache()); err != nil {
				return err
			}
			plan, err := image.Survey(cmd.Context(), opt)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, plan.Close()) }()
			switch {
			case dryRun && asJSON:
				return ui.JSON(a.stdout, plan)
			case dryRun:
				return printImagePlan(a, plan)
			}
			return buildImage(cmd.Context(), a, plan, output, asJSON)
		},
	}
	f := cmd.Flags()
	f.StringVar(&base, "base", "", "`BASE`: an image reference, the file of docker save, or the folder of an OCI layout")
	f.StringArrayVar(&named, "wheel", []string{"dist"}, "the wheel of DeepSpeed, `FILE|DIR`; companion wheels too, repeatable")
	f.StringVarP(&output, "output", "o", "", "image to make: `HOST/NAME:TAG` in a registry, or NAME.tar")
	f.StringVar(&name, "name", "", "`NAME` of the image in a tar, which docker load gives it")
	given := func(name, help string) { facts[name] = f.String(name, "", help) }
	given(image.FactPython, "Python `VERSION` of the base: 3.11")
	given(image.FactTorch, "torch `VERSION` of the base: 2.15.0+cu132")
	given(image.FactCUDA, "CUDA `VERSION` that this torch was built for: 13.2, or none")
	given(image.FactGlibc, "glibc `VERSION` of the base: 2.35")
	given(image.FactLibstdcxx, "newest GLIBCXX `VERSION` of the base's libstdc++: 3.4.30")
	given(image.FactSitePackages, "`FOLDER` in the base into which pip installs")
	given(image.FactDeepSpeed, "`VERSION` of the DeepSpeed in the base, which the layer replaces, or none")
	f.BoolVar(&force, "force", false, "replace an output that is there")
	f.BoolVar(&dryRun, "dry-run", false, "read the base, print the plan and stop")
	f.BoolVar(&asJSON, "json", false, "print one JSON document")
	return cmd
}

// sourceDate is the time of SOURCE_DATE_EPOCH; without the variable it is zero.
func sourceDate() (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		return time.Time{}, nil
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seconds < 0 || seconds > 1<<33 {
		return time.Time{}, usagef("SOURCE_DATE_EPOCH=%q: must be seconds since 1970", text)
	}
	return time.Unix(seconds, 0), nil
}

// buildImage makes the image that was planned, and prints its digest.
func buildImage(ctx context.Context, a *app, plan *image.Plan, output string, asJSON bool) error {
	for _, r := range plan.Remarks {
		a.reporter.Note("%s", r)
	}
	step := a.reporter.Step("image " + output)
	result, err := plan.Build(ctx)
	if err != nil {
		step.End(ui.Failed, "")
		return err
	}
	if result.Unchanged {
		step.End(ui.Skipped, "it is there already")
	} else {
		step.End(ui.Done, ui.Size(result.Layer.Size)+" layer")
	}
	if asJSON {
		return ui.JSON(a.stdout, result)
	}
	_, err = fmt.Fprintf(a.stdout, "%s  %s\n", ui.Clean(result.Image), result.Digest)
	return err
}

// printImagePlan prints the facts about the base, and the planned image.
func printImagePlan(a *app, plan *image.Plan) error {
	rows := each.Map(plan.Facts, func(f image.Fact) []string { return []string{f.Name, f.Value, f.Source} })
	err := ui.Table(a.stdout, []string{"FACT", "VALUE", "FROM"}, rows)
	names := each.Map(plan.Wheels, func(w image.Wheel) string { return w.Name })
	_, last := fmt.Fprintf(a.stdout, "%s: %s, %s, %s: %s fits\n", ui.Clean(plan.Base.Name), ui.Count(plan.Base.Layers, "layer"), ui.Size(plan.Base.Size), plan.Base.Platform, strings.Join(names, ", "))
	for _, r := range plan.Remarks {
		fmt.Fprintln(a.stdout, ui.Clean(r))
	}
	return errors.Join(err, last)
}
