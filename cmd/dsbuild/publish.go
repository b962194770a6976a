package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/internal/each"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/release/publish"
)

func newPublishCommand(a *app) *cobra.Command {
	var checkURL, ca string
	var parallel int
	var dryRun, asJSON bool
	var forms strings.Builder
	for _, f := range publish.Forms() {
		fmt.Fprintf(&forms, "  %-28s %s\n", f.Form, f.Meaning)
	}
	cmd := &cobra.Command{
		Use:   "publish WHEEL|DIR... TO",
		Short: "Put wheels into a folder, S3, a package index or a registry",
		Long: `Put wheels, and the files beside them, where others get them. TO is one of:

` + forms.String() + `
dsbuild verifies the wheels first. Then it sends the files that TO does not have
yet. It never replaces a file: if TO has a file with the same name and other
content, dsbuild sends nothing (exit code 4). A file appears in TO completely or
not at all. After an interruption, repeat the command: it sends the missing
files.

Credentials come from where the usual tools take them: AWS_ACCESS_KEY_ID and
~/.aws, TWINE_USERNAME and TWINE_PASSWORD, ~/.pypirc, docker login.
dsbuild has no flag for them, and prints none.`,
		Example: `  dsbuild publish dist /srv/wheels
  dsbuild publish dist s3://wheels/deepspeed --dry-run
  dsbuild publish dist pypirc:internal --check-url https://pypi.example.org/simple/
  dsbuild publish dist oci://registry.example.org/team/wheels`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			to, err := publish.ParseTarget(args[len(args)-1])
			if err != nil {
				return err
			}
			if parallel < 1 {
				return usagef("--parallel %d: must be at least 1", parallel)
			}
			if checkURL != "" && !to.Index() {
				return usagef("--check-url needs a package index as TO: https://HOST/PATH or pypirc:NAME")
			}
			if err := checkIndexURL("--check-url", checkURL); err != nil {
				return err
			}
			site, err := pipeline.NewSite(pipeline.SiteOptions{CA: ca}, os.Getenv)
			if err != nil {
				return err
			}
			opt := publish.Options{
				To: to, CheckURL: checkURL, Parallel: parallel, DryRun: dryRun,
				Transport: site.Transport(), Warn: a.reporter.Warn,
				Progress: func(total int64) publish.Progress { return a.reporter.Bar("publish", total) },
			}
			if opt.Wheels, err = wheelsOf(args[:len(args)-1]); err != nil {
				return err
			}
			sum, err := publish.Run(cmd.Context(), opt)
			if err != nil {
				return noWheel(err)
			}
			if asJSON {
				return ui.JSON(a.stdout, sum)
			}
			return printPublished(a, sum)
		},
	}
	f := cmd.Flags()
	f.StringVar(&checkURL, "check-url", "",
		"`URL` of the package index's simple pages (PEP 503), where dsbuild looks up which files the index has")
	caFlag(f, &ca)
	f.IntVar(&parallel, "parallel", 4, "`N` wheels at the same time")
	f.BoolVar(&dryRun, "dry-run", false, "show which files would be sent, and send nothing")
	f.BoolVar(&asJSON, "json", false, "print one JSON document")
	return cmd
}

// printPublished is the result of publish for people.
func printPublished(a *app, sum publish.Summary) error {
	rows := each.Map(sum.Files, func(f publish.Result) []string { return []string{f.Name, ui.Size(f.Size), string(f.Status)} })
	err := ui.Table(a.stdout, []string{"FILE", "SIZE", "STATUS"}, rows)
	sent, bytes := sum.Count(publish.Sent)
	present, _ := sum.Count(publish.Present)
	last := fmt.Sprintf("%s: %s sent (%s), %d present", sum.To, ui.Count(sent, "file"), ui.Size(bytes), present)
	if sum.DryRun {
		absent, bytes := sum.Count(publish.Absent)
		last = fmt.Sprintf("%s: %s to send (%s), %d present; nothing was sent", sum.To, ui.Count(absent, "file"), ui.Size(bytes), present)
	}
	_, printErr := fmt.Fprintln(a.stdout, ui.Clean(last))
	return errors.Join(err, printErr)
}
