// Package nightly holds the files that run nightly under several schedulers, and tests them.
package nightly

import (
	"bytes"
	"cmp"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/rhysd/actionlint"

	"github.com/dsbuild/dsbuild/internal/testkit/pages"
	"github.com/dsbuild/dsbuild/release/nightly"
)

// command is the command that all of them run.
const command = "dsbuild nightly -f nightly.yaml"

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestFile(t *testing.T) {
	c, err := nightly.Read("nightly.yaml")
	if err != nil || len(c.Entries) != 2 || len(c.Sources) != 2 || c.Index == nil {
		t.Errorf("%v, %+v", err, c)
	}
	// The commented settings must be right too.
	whole := regexp.MustCompile(`(?m)^# (deploy:|  )`).ReplaceAllString(read(t, "nightly.yaml"), "$1")
	file := filepath.Join(t.TempDir(), "nightly.yaml")
	if err := os.WriteFile(file, []byte(whole), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err = nightly.Read(file)
	if err != nil || c.Deploy == nil || c.Deploy.Canary != "canary" || c.Deploy.Flags["max-fail"] != "5%" {
		t.Errorf("%v, %+v", err, c.Deploy)
	}
}

// All settings that docs/nightly.md shows are valid.
func TestFileOfThePage(t *testing.T) {
	page, err := pages.Read("../../docs/nightly.md")
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(page.Blocks, func(b pages.Block) bool { return strings.HasPrefix(b.Text, "wheels:") })
	if at < 0 {
		t.Fatal("the page shows no settings")
	}
	file := filepath.Join(t.TempDir(), "nightly.yaml")
	if err := os.WriteFile(file, []byte(page.Blocks[at].Text), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := nightly.Read(file)
	if err != nil || len(c.Entries) != 2 || len(c.Sources) != 2 || c.Index == nil || c.Deploy == nil {
		t.Errorf("%v, %+v", err, c)
	}
}

// lintWorkflow returns actionlint's findings about a workflow.
func lintWorkflow(t *testing.T, file, text string) []*actionlint.Error {
	t.Helper()
	linter, err := actionlint.NewLinter(io.Discard, &actionlint.LinterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wrong, err := linter.Lint(filepath.Base(file), []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	return wrong
}

// TestWorkflows lints dsbuild's own workflows.
func TestWorkflows(t *testing.T) {
	files, err := filepath.Glob("../../.github/workflows/*.yml")
	if err != nil || len(files) == 0 {
		t.Fatalf("workflows: %q, %v", files, err)
	}
	for _, file := range files {
		if wrong := lintWorkflow(t, file, read(t, file)); len(wrong) > 0 {
			t.Errorf("%v", wrong)
		}
	}
}

func TestGitHub(t *testing.T) {
	text := read(t, "github.yml")
	if wrong := lintWorkflow(t, "github.yml", text); len(wrong) > 0 {
		t.Errorf("%v", wrong)
	}
	if len(lintWorkflow(t, "github.yml", strings.Replace(text, "runs-on:", "run-on:", 1))) == 0 {
		t.Error("actionlint does not see a mistake")
	}
	if !strings.Contains(text, "run: "+command+"\n") {
		t.Errorf("it does not run %s", command)
	}
}

// workflowJob and workflowStep are the parts of a workflow that the tests read.
type (
	workflowJob struct {
		Permissions map[string]string
		Environment string
		Steps       []workflowStep
	}
	workflowStep struct {
		Name string
		Uses string
		Env  map[string]string
		With map[string]any
		Run  string
	}
)

// readWorkflow reads a workflow. It fails the test unless each action is pinned to a commit,
// each job lists its permissions, checkout leaves no token behind, and no script or action sees
// a secret.
func readWorkflow(t *testing.T, file string) (text string, jobs map[string]workflowJob) {
	t.Helper()
	var workflow struct {
		Permissions map[string]string
		Jobs        map[string]workflowJob
	}
	text = read(t, file)
	if err := yaml.Unmarshal([]byte(text), &workflow); err != nil {
		t.Fatal(err)
	}
	pinned := regexp.MustCompile(`uses: actions/[a-z/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+\n`)
	if all := strings.Count(text, "uses: ") - strings.Count(text, "uses: ./.github/workflows/"); all == 0 || len(pinned.FindAllString(text, -1)) != all {
		t.Errorf("%s: of %d actions some are not pinned to a commit", file, all)
	}
	if !strings.Contains(text, "\npermissions: {}\n") {
		t.Errorf("%s: rights for all jobs: %v", file, workflow.Permissions)
	}
	for name, job := range workflow.Jobs {
		if job.Permissions == nil {
			t.Errorf("%s: %s does not list its rights", file, name)
		}
		for _, s := range job.Steps {
			if strings.HasPrefix(s.Uses, "actions/checkout@") && s.With["persist-credentials"] != false {
				t.Errorf("%s: %s: checkout leaves its token there", file, name)
			}
			if strings.Contains(s.Run, "secrets.") || strings.Contains(s.Run, "github.token") || len(s.Uses) > 0 && len(s.Env) > 0 {
				t.Errorf("%s: %s: %+v", file, name, s)
			}
		}
	}
	return text, workflow.Jobs
}

// Code that can change under a permanent name does not run beside the SSH key. Actions are named
// by commits, and dsbuild by a version that the user sets. The key is in one step of a job that
// has no cache and may only read the repository.
func TestGitHubTrustsNoTag(t *testing.T) {
	text, jobs := readWorkflow(t, "github.yml")
	var holders []string
	for name, job := range jobs {
		if !maps.Equal(job.Permissions, map[string]string{"contents": "read"}) {
			t.Errorf("%s: rights %v; want to read contents alone", name, job.Permissions)
		}
		for _, s := range job.Steps {
			if s.Env["DSBUILD_SSH_KEY"] != "" {
				holders = append(holders, name)
			}
		}
	}
	if len(holders) != 1 || strings.Count(text, "secrets.") != 1 {
		t.Fatalf("the key is in steps of %v", holders)
	}
	holder := jobs[holders[0]]
	if holder.Environment == "" || slices.ContainsFunc(holder.Steps, func(s workflowStep) bool {
		return strings.Contains(s.Uses, "cache") || strings.Contains(s.Run, command)
	}) {
		t.Errorf("%s builds, or takes what others left: %+v", holders[0], holder)
	}
}

// The same rules hold for this repository: only the jobs that draft a release or publish pages may write. A draft's
// job alone sees a token, in the steps that write with it, and without a cache.
func TestOwnWorkflowsTrustNoTag(t *testing.T) {
	files, err := filepath.Glob("../../.github/workflows/*.yml")
	if err != nil || len(files) != 3 {
		t.Fatalf("%v, %v", files, err)
	}
	// id-token and attestations are for the statement of who made the files.
	draft := map[string]string{"contents": "write", "id-token": "write", "attestations": "write"}
	withImage := maps.Clone(draft)
	withImage["packages"] = "write" // the registry of container images
	writers := map[string]map[string]string{
		"release.yml release": withImage,
		"wheels.yml release":  draft,
		"wheels.yml index":    {"id-token": "write", "pages": "write"},
	}
	seesToken := []string{"make release", "Push the image", "Draft the release", "Fetch the published wheels"}
	for _, file := range files {
		text, jobs := readWorkflow(t, file)
		if wrong := lintWorkflow(t, file, text); len(wrong) > 0 {
			t.Errorf("%v", wrong)
		}
		tokens := 0
		for name, job := range jobs {
			rights, writes := writers[filepath.Base(file)+" "+name]
			if !writes {
				rights = map[string]string{"contents": "read"}
			}
			if !maps.Equal(job.Permissions, rights) {
				t.Errorf("%s: %s: rights %v; want %v", file, name, job.Permissions, rights)
			}
			drafts := rights["contents"] == "write"
			for _, s := range job.Steps {
				if len(s.Env) > 0 {
					tokens++
					if !drafts || !slices.Contains(seesToken, cmp.Or(s.Name, s.Run)) {
						t.Errorf("%s: %s: %+v; want no variables there", file, name, s)
					}
				}
				if writes && strings.HasPrefix(s.Uses, "actions/setup-go@") && s.With["cache"] != false {
					t.Errorf("%s: %s takes what other runs cached", file, name)
				}
			}
		}
		if strings.Count(text, "github.token") != tokens || strings.Contains(text, "secrets.") || strings.Contains(text, "pull_request_target") {
			t.Errorf("%s: a job that needs none could see a secret", file)
		}
	}
}

// The workflow of examples/ci follows the rules of nightly's.
func TestExample(t *testing.T) {
	const file = "../../examples/ci/github.yml"
	text, _ := readWorkflow(t, file)
	if wrong := lintWorkflow(t, file, text); len(wrong) > 0 {
		t.Errorf("%v", wrong)
	}
}

func TestNoLatest(t *testing.T) {
	for _, file := range []string{"github.yml", "gitlab-ci.yml"} {
		if strings.Contains(read(t, file), "@latest") {
			t.Errorf("%s installs whatever is newest", file)
		}
	}
}

// GitLab's validator needs a GitLab, so the test checks only the form of the file.
func TestGitLab(t *testing.T) {
	var doc map[string]struct {
		Script    []string
		Artifacts struct {
			When string
		}
		Cache struct {
			When  string
			Paths []string
		}
		ResourceGroup string `yaml:"resource_group"`
	}
	if err := yaml.Unmarshal([]byte(read(t, "gitlab-ci.yml")), &doc); err != nil {
		t.Fatal(err)
	}
	job, ok := doc["dsbuild-nightly"]
	if !ok || len(job.Script) != 1 || job.Script[0] != command || job.Artifacts.When != "always" || job.Cache.When != "always" || job.ResourceGroup == "" {
		t.Errorf("%+v", doc)
	}
}

// The units are valid for systemd, with a dsbuild at the path that they use.
func TestSystemd(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	home := t.TempDir()
	units := filepath.Join(home, ".config/systemd/user")
	for _, dir := range []string{units, filepath.Join(home, "bin"), filepath.Join(home, "cluster")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(home, "bin", "dsbuild"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	service := read(t, "dsbuild-nightly.service")
	if !strings.Contains(service, "ExecStart=%h/bin/"+command+"\n") {
		t.Errorf("it does not run %s", command)
	}
	verify := func(service string) string {
		for name, text := range map[string]string{"dsbuild-nightly.service": service, "dsbuild-nightly.timer": read(t, "dsbuild-nightly.timer")} {
			if err := os.WriteFile(filepath.Join(units, name), []byte(strings.ReplaceAll(text, "%h", home)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command(analyze, "--user", "--recursive-errors=no", "verify", filepath.Join(units, "dsbuild-nightly.timer"), filepath.Join(units, "dsbuild-nightly.service"))
		cmd.Env = append(os.Environ(), "HOME="+home, "XDG_RUNTIME_DIR="+home, "SYSTEMD_LOG_LEVEL=warning")
		out, _ := cmd.CombinedOutput() // its output decides
		return string(out)
	}
	if said := verify(service); said != "" {
		t.Errorf("systemd-analyze: %s", said)
	}
	if said := verify(strings.Replace(service, "Type=oneshot", "Typ=oneshot", 1)); !strings.Contains(said, "Typ") {
		t.Errorf("systemd-analyze sees no mistake: %q", said)
	}
}

// A good night prints nothing, so cron sends no mail; a bad one prints its whole output.
func TestCron(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(read(t, "crontab")), "\n")
	parts := regexp.MustCompile(`^\d+ \d+ \* \* \*  (.*)$`).FindStringSubmatch(lines[len(lines)-1])
	if parts == nil || strings.Contains(parts[1], "%") { // a newline for cron
		t.Fatalf("no line of a crontab: %q", lines)
	}
	home := t.TempDir()
	for _, dir := range []string{"bin", "cluster"} {
		if err := os.MkdirAll(filepath.Join(home, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for script, want := range map[string]string{
		`echo "$@" >calls; echo progress >&2`: "", `echo "the audit says no" >&2; exit 4`: "the audit says no\n",
	} {
		if err := os.WriteFile(filepath.Join(home, "bin", "dsbuild"), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("/bin/sh", "-c", parts[1])
		cmd.Env, cmd.Dir = []string{"HOME=" + home, "PATH=/usr/bin:/bin"}, home
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		_ = cmd.Run() // cron ignores its exit code
		if out.String() != want {
			t.Errorf("%s: it says %q, want %q", script, out.String(), want)
		}
	}
	if calls := read(t, filepath.Join(home, "cluster", "calls")); "dsbuild "+strings.TrimSpace(calls) != command {
		t.Errorf("it runs %q", calls)
	}
}
