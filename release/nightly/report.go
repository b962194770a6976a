package nightly

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/atomicfile"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Status is the result of a wheel, or of a stage.
type Status string

// The states.
const (
	Built     Status = "built"     // this night has built it
	Stored    Status = "stored"    // another run had built it; it is new here
	Unchanged Status = "unchanged" // nothing has changed since the last build
	Failed    Status = "failed"
	Done      Status = "done"
	Skipped   Status = "skipped" // there was nothing to do, or an earlier stage failed
)

// Report is the result of a night.
type Report struct {
	ID      string         `json:"id"`
	Started time.Time      `json:"started"`
	Ended   time.Time      `json:"ended"`
	Resumed bool           `json:"resumed"` // an earlier run of this night was interrupted
	Good    bool           `json:"good"`
	Dir     string         `json:"dir"`
	By      string         `json:"by"`
	Summary Summary        `json:"summary"`
	Entries []*EntryReport `json:"entries"` // source after source, in the order of the file
	Publish *PublishReport `json:"publish"` // null if the night publishes nothing
	Deploys []DeployReport `json:"deploys"` // the canary, and all
	Pruned  int            `json:"pruned"`  // builds and reports that were dropped
}

// Summary counts wheels by status.
type Summary struct {
	Built     int `json:"built"`
	Stored    int `json:"stored"`
	Unchanged int `json:"unchanged"`
	Failed    int `json:"failed"`
}

// EntryReport is the result of a wheel.
type EntryReport struct {
	Name   string `json:"name"`  // wheel@source
	Wheel  string `json:"wheel"` // its name in the file
	Source string `json:"source"`
	Outcome
	Seconds float64  `json:"seconds"` // of the build, or 0 if it was cached
	Build   *Build   `json:"build"`   // the build of now; of a wheel that failed the last good one
	Before  *Build   `json:"before"`  // the build before this night
	Changes []string `json:"changes"` // since then
}

// PublishReport is the result of the index.
type PublishReport struct {
	Outcome
	Dir     string `json:"dir"`
	URL     string `json:"url,omitempty"`
	Wheels  int    `json:"wheels"`
	Written int    `json:"written"`
	Removed int    `json:"removed"`
}

// Nodes counts the results on nodes.
type Nodes struct {
	OK      int    `json:"ok"`
	Changed int    `json:"changed"`
	All     int    `json:"all"`
	Verdict string `json:"verdict,omitempty"`
}

// DeployReport is the result of a deploy to some nodes.
type DeployReport struct {
	Name  string `json:"name"` // canary or nodes
	Limit string `json:"limit,omitempty"`
	Outcome
	Seconds float64 `json:"seconds"`
	Nodes   Nodes   `json:"nodes"`
	Report  string  `json:"report,omitempty"` // without its ending: .json, .html
}

// Outcome is how a wheel or a stage ended.
type Outcome struct {
	Status Status `json:"status"`
	Error  string `json:"error,omitempty"`
	Hint   string `json:"hint,omitempty"`

	err error
}

func (o *Outcome) fail(err error) {
	*o = Outcome{Failed, ui.Clean(err.Error()), ui.Clean(fault.Hint(err)), err}
}

// fail records a failure of this night. The last good build stays.
func (e *EntryReport) fail(err error) {
	e.Outcome.fail(err)
	e.Build = e.Before
}

// recordBuild records this night's build.
func (e *EntryReport) recordBuild(b Build, s Status) {
	e.Status, e.Build = s, &b
	if s == Built {
		e.Seconds = b.Seconds
	}
	e.Changes = describeChanges(e.Before, b)
}

// describeChanges describes the differences between two builds.
func describeChanges(before *Build, now Build) []string {
	if before == nil {
		return []string{"first build"}
	}
	said := []string{}
	say := func(what, from, to string) {
		if from != to {
			said = append(said, fmt.Sprintf("%s %s, was %s", what, cmp.Or(to, "none"), cmp.Or(from, "none")))
		}
	}
	say("commit", shortCommit(before.Commit), shortCommit(now.Commit))
	say("DeepSpeed", before.Source, now.Source)
	say("torch", before.Torch, now.Torch)
	say("CUDA", before.CUDA, now.CUDA)
	say("Python", before.Python, now.Python)
	say("gcc", before.GCC, now.GCC)
	say("base", before.Base, now.Base)
	say("GPUs", strings.Join(before.Archs, " "), strings.Join(now.Archs, " "))
	say("PTX", strings.Join(before.PTX, " "), strings.Join(now.PTX, " "))
	say("ops", strings.Join(before.Ops, " "), strings.Join(now.Ops, " "))
	say("dsbuild", before.Dsbuild, now.Dsbuild)
	if d := now.Size - before.Size; d != 0 {
		sign := ""
		if d > 0 {
			sign = "+"
		}
		said = append(said, fmt.Sprintf("size %s (%s%s)", ui.Size(now.Size), sign, ui.Size(d)))
	}
	if before.Seconds > 0 && now.Seconds > 0 && before.Plan != now.Plan {
		said = append(said, fmt.Sprintf("built in %s, was %s", formatSeconds(now.Seconds), formatSeconds(before.Seconds)))
	}
	return said
}

func shortCommit(commit string) string { return commit[:min(len(commit), 12)] }

func formatSeconds(s float64) string { return ui.Duration(time.Duration(s * float64(time.Second))) }

func (r *Report) countResults() {
	r.Summary = Summary{}
	for _, e := range r.Entries {
		switch e.Status {
		case Built:
			r.Summary.Built++
		case Stored:
			r.Summary.Stored++
		case Unchanged:
			r.Summary.Unchanged++
		default:
			r.Summary.Failed++
		}
	}
	r.Good = r.Err() == nil
}

// Err returns nil if nothing failed. The first failure decides the exit code. For wheels it is 4 if all failed
// wheels were built but do not match their requests, else 1. For the index it is 1, for nodes the exit code of
// dsbuild deploy.
func (r *Report) Err() error {
	var said, failed []string
	var codes []int
	ofWheels := 4
	for _, w := range r.Entries {
		if w.Status != Failed {
			continue
		}
		failed = append(failed, w.Name)
		if fault.ExitCode(w.err) != 4 {
			ofWheels = 1
		}
	}
	if len(failed) > 0 {
		said = append(said, fmt.Sprintf("%d of %d wheels failed: %s",
			len(failed), len(r.Entries), strings.Join(failed, ", ")))
		codes = append(codes, ofWheels)
	}
	if p := r.Publish; p != nil && p.Status == Failed {
		said, codes = append(said, "index: "+p.Error), append(codes, 1)
	}
	for _, d := range r.Deploys {
		if d.Status == Failed {
			said, codes = append(said, d.Name+": "+d.Error), append(codes, max(fault.ExitCode(d.err), 1))
		}
	}
	if len(said) == 0 {
		return nil
	}
	return fault.WithCode(errors.New(strings.Join(said, "; ")), codes[0])
}

// Print writes the report in human-readable form.
func (r *Report) Print(w io.Writer) error {
	var rows [][]string
	for _, e := range r.Entries {
		said, _, _ := strings.Cut(cmp.Or(e.Error, strings.Join(e.Changes, "; ")), "\n")
		row := []string{e.Name, string(e.Status), "", "", said}
		if e.Build != nil {
			row[2] = ui.Size(e.Build.Size)
		}
		if e.Seconds > 0 {
			row[3] = formatSeconds(e.Seconds)
		}
		rows = append(rows, row)
	}
	if err := ui.Table(w, []string{"WHEEL", "STATUS", "SIZE", "TIME", "CHANGES"}, rows); err != nil {
		return err
	}
	var lines []string
	add := func(line, failure string) {
		if failure != "" {
			line += ": " + failure
		}
		lines = append(lines, ui.Clean(line)+"\n")
	}
	if p := r.Publish; p != nil {
		add(fmt.Sprintf("index %s: %s, %d wheels", p.Dir, p.Status, p.Wheels), p.Error)
	}
	for _, d := range r.Deploys {
		line := fmt.Sprintf("%s: %s", d.Name, d.Status)
		if d.Nodes.All > 0 {
			line += fmt.Sprintf(", %d of %d nodes ok, %d changed", d.Nodes.OK, d.Nodes.All, d.Nodes.Changed)
		}
		add(line, d.Error)
	}
	for _, e := range r.Entries {
		if strings.Contains(e.Error, "\n") || e.Hint != "" { // more than the table shows
			add(e.Name, e.Error)
			for hint := range strings.Lines(e.Hint) {
				add("  hint: "+strings.TrimSpace(hint), "")
			}
		}
	}
	add("report: "+filepath.Join(r.Dir, reportName+".json"), "")
	_, err := io.WriteString(w, strings.Join(lines, ""))
	return err
}

// writeFiles writes the report in all formats, for this night and as the latest report.
func (r *Report) writeFiles() error {
	run := filepath.Join(r.Dir, runsName, r.ID)
	if err := os.MkdirAll(run, 0o755); err != nil {
		return err
	}
	for ending, form := range map[string]func(io.Writer) error{
		".json": func(w io.Writer) error { return ui.JSON(w, r) },
		".txt":  r.Print,
	} {
		var text bytes.Buffer
		if err := form(&text); err != nil {
			return err
		}
		for _, dir := range []string{run, r.Dir} {
			if err := atomicfile.Write(filepath.Join(dir, reportName+ending), bytes.NewReader(text.Bytes()), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}
