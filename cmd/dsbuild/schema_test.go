package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/schema"
)

// document is a JSON document of dsbuild: its schema in docs/schema, and where it comes from.
type document struct {
	schema   string
	commands []string // that print it with --json and these flags
	files    string   // that hold it, for people
}

// documents are all of them, in the order of docs/commands.md.
func documents() []document {
	return []document{
		{"wheel", []string{"wheel"}, ""},
		{"wheels", []string{"wheel --for"}, "`wheel` with GPUs of x86_64 and aarch64 machines"},
		{"wheel-plan", []string{"wheel --dry-run"}, ""},
		{"wheels-plan", nil, "`wheel --dry-run` with GPUs of x86_64 and aarch64 machines"},
		{"wheel-for-plan", []string{"wheel --for --dry-run", "ship --env --dry-run"}, ""},
		{"manifest", nil, "`NAME.whl.manifest.json` next to a wheel"},
		{"wheelhouse", nil, "`wheelhouse/bundle.json`"},
		{"inspect", []string{"inspect"}, ""},
		{"verify-wheel", []string{"verify-wheel"}, ""},
		{"index", []string{"index"}, ""},
		{"index-file", nil, "`index.json` in an index's directory"},
		{"nodes", []string{"nodes"}, ""},
		{"report", []string{"deploy", "verify", "rollback", "ship", "env deploy", "env verify", "env rollback"}, "`--report FILE.json` of these commands"},
		{"deploy-plan", []string{"deploy --dry-run", "rollback --dry-run"}, ""},
		{"ship-plan", []string{"ship --dry-run"}, ""},
		{"env-plan", []string{"env deploy --dry-run", "env rollback --dry-run"}, ""},
		{"env-lock", []string{"env lock"}, ""},
		{"environment-lock", nil, "`environment.lock`"},
		{"nightly", []string{"nightly"}, "`report.json` in the nightly `dir`"},
		{"check", []string{"check"}, "`--report FILE.json`"},
		{"why", []string{"why"}, ""},
		{"lint", []string{"launch lint"}, ""},
		{"lint-rules", []string{"launch lint --rules"}, ""},
		{"launch", []string{"launch torchrun --submit", "launch jax --submit"}, ""},
		{"launch-slurm", []string{"launch slurm --submit"}, "`launch jax --submit` if Slurm runs the job"},
		{"job", nil, "`job.json` in the directory of a job's logs"},
		{"gpus", []string{"gpus"}, ""},
		{"ops", []string{"ops"}, ""},
		{"toolchains", []string{"toolchains"}, ""},
		{"version", []string{"version"}, ""},
	}
}

// schemaRows is the table of docs/commands.md.
func schemaRows() string {
	rows := "| schema | command with `--json`, or file |\n|---|---|\n"
	for _, d := range documents() {
		var from []string
		for _, command := range d.commands {
			from = append(from, "`"+command+"`")
		}
		if d.files != "" {
			from = append(from, d.files)
		}
		rows += fmt.Sprintf("| [%s](schema/%s.json) | %s |\n", d.schema, d.schema, strings.Join(from, ", "))
	}
	return rows
}

// schemaOf returns the schema of what a command line prints with --json: that of the command of which it has most words.
func schemaOf(args []string) (name string) {
	most := 0
	for _, d := range documents() {
		for _, command := range d.commands {
			words := strings.Fields(command)
			missing := slices.ContainsFunc(words, func(w string) bool { return !slices.Contains(args, w) })
			if !missing && words[0] == args[0] && len(words) > most {
				name, most = d.schema, len(words)
			}
		}
	}
	return name
}

// checkDocument holds what a command line has printed with --json against its schema.
func checkDocument(t *testing.T, args []string, stdout string) {
	t.Helper()
	if !slices.Contains(args, "--json") || stdout == "" {
		return
	}
	if name := schemaOf(args); name != "" {
		schema.Check(t, name, []byte(stdout))
	}
}

// Every schema is in the table, is held against a real document, and notices a field that is missing or has another name.
func TestSchemas(t *testing.T) {
	t.Parallel()
	checked := checkedSchemas(t)
	var listed []string
	for _, d := range documents() {
		listed = append(listed, d.schema+".json")
		if !checked[d.schema] {
			t.Errorf("%s: no script has \"schema %s\", no test schema.Check(t, %q, …)", d.schema, d.schema, d.schema)
		}
		text, err := os.ReadFile(filepath.Join(schema.Dir(t), d.schema+".json"))
		if err != nil {
			t.Error(err)
			continue
		}
		var is any
		if err := json.Unmarshal(text, &is); err != nil {
			t.Errorf("%s: %v", d.schema, err)
		}
		checkStrict(t, d.schema, is)
	}
	entries, err := os.ReadDir(schema.Dir(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !slices.Contains(listed, e.Name()) {
			t.Errorf("%s: documents does not list it", e.Name())
		}
	}
}

// checkedSchemas are the schemas against which a test holds a document.
func checkedSchemas(t *testing.T) map[string]bool {
	t.Helper()
	use := regexp.MustCompile(`(?m)^schema ([a-z-]+)|schema\.Check\(t, "([a-z-]+)"`)
	checked := map[string]bool{}
	for _, pattern := range []string{"testdata/script/*.txtar", "*_test.go", "../../wheel/*_test.go"} {
		for _, m := range findInFiles(t, pattern, use) {
			checked[m[1]+m[2]] = true
		}
	}
	return checked
}

// findInFiles returns the matches of an expression, with its groups, in all files of a pattern.
func findInFiles(t *testing.T, pattern string, expression *regexp.Regexp) (found [][]string) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, expression.FindAllStringSubmatch(string(text), -1)...)
	}
	return found
}

// checkStrict fails if an object of a schema lets unknown or missing fields pass.
func checkStrict(t *testing.T, at string, is any) {
	t.Helper()
	switch is := is.(type) {
	case []any:
		for _, one := range is {
			checkStrict(t, at, one)
		}
	case map[string]any:
		if fields, ok := is["properties"].(map[string]any); ok && is["type"] == "object" {
			required, _ := is["required"].([]any)
			anySubset := at == "ops.$defs.needs" || len(fields) < 3
			if is["additionalProperties"] != false || len(required) == 0 && !anySubset {
				t.Errorf("%s: an object without required fields, or with further ones", at)
			}
			for _, name := range required {
				if _, ok := fields[name.(string)]; !ok {
					t.Errorf("%s: %v is required, and no field", at, name)
				}
			}
		} else if is["type"] == "object" && is["additionalProperties"] == nil {
			t.Errorf("%s: an object without fields", at)
		}
		for key, one := range is {
			checkStrict(t, at+"."+key, one)
		}
	}
}

func TestSchemaOf(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"wheel --arch 8.0 --json":                  "wheel",
		"wheel --for i.yaml --json --dry-run":      "wheel-for-plan",
		"env deploy i.yaml --json":                 "report",
		"launch jax --form manual --submit --json": "launch",
		"launch slurm --submit --json -- train.py": "launch-slurm",
		"launch lint a.sh --json":                  "lint",
		"ship i.yaml --env e.yaml --json":          "report",
		"rebuild x.whl":                            "",
	} {
		if got := schemaOf(strings.Fields(line)); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

// The schema of a report allows each step that a node can fail at, and no other.
func TestStepsOfReports(t *testing.T) {
	t.Parallel()
	steps := []string{""}
	step := regexp.MustCompile(`(?:PutStep\(n\.Node, |\bn\.Step = [^"\n]*|\bName: )"([a-z]+)"(?:, Limit|, n\.|$|\n)`)
	for _, pattern := range []string{"steps.go", "change/*.go", "deploy/*.go", "envdeploy/*.go", "verify/*.go"} {
		files, err := filepath.Glob(filepath.Join("../../fleet", pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %q, %v", pattern, files, err)
		}
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range step.FindAllStringSubmatch(string(source), -1) {
				if !strings.HasSuffix(file, "_test.go") && !slices.Contains(steps, m[1]) {
					steps = append(steps, m[1])
				}
			}
		}
	}
	schema, err := os.ReadFile("../../docs/schema/report.json")
	if err != nil {
		t.Fatal(err)
	}
	enums := regexp.MustCompile(`"step": \{[^}]*"enum": (\[[^]]*\])`).FindAllSubmatch(schema, -1)
	if len(enums) != 2 {
		t.Fatalf("report.json lists the steps %d times, want 2", len(enums))
	}
	for _, enum := range enums {
		var listed []string
		if err := json.Unmarshal(enum[1], &listed); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(slices.Sorted(slices.Values(listed)), slices.Sorted(slices.Values(steps))) {
			t.Errorf("report.json lists the steps %q; nodes are taken through %q", listed, steps)
		}
	}
}
