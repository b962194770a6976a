package hostbuilder

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
)

// The same step on the same inputs is taken from what an earlier build left; with
// anything else, with --no-cache, or where what was left is damaged, it runs.
func TestStepsAreKept(t *testing.T) {
	ran := filepath.Join(t.TempDir(), "ran")
	in := t.TempDir()
	made := pipeline.Step{
		Name: "make", Image: pipeline.Toolchain, Inputs: []string{"in"},
		Script: `echo >>` + ran + `; cp "$DSBUILD_IN/in/file" "$DSBUILD_OUT/"; mkdir "$DSBUILD_OUT/sub"; ln -s ../file "$DSBUILD_OUT/sub/link"`,
	}
	fetched := pipeline.Step{Name: "fetch", Image: pipeline.Toolchain, Network: true, Script: made.Script, Inputs: made.Inputs}
	b := host(t)
	images, _ := planOf(t) // of which each plan would have others
	times := func(s pipeline.Step, content string, more func(*pipeline.Plan)) (runs int, how ui.Outcome) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(in, "file"), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		p, _ := planOf(t, s)
		p.Context = images.Context
		if more != nil {
			more(p)
		}
		before, _ := os.ReadFile(ran) // not there: it never ran
		rep := newRecord()
		r := open(t, b, p, new(bytes.Buffer), rep)
		if err := r.Import("in", in); err != nil {
			t.Fatal(err)
		}
		if err := r.Run(t.Context(), p.Steps[0]); err != nil {
			t.Fatal(err)
		}
		if got := read1(t, r.outputs[s.Name], "sub", "link"); got != content {
			t.Errorf("the output is %q, want %q", got, content)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		after, _ := os.ReadFile(ran)
		return strings.Count(string(after), "\n") - strings.Count(string(before), "\n"), rep.ends[len(rep.ends)-1]
	}
	damage := func(*pipeline.Plan) {
		kept, _ := fs.Glob(os.DirFS(b.stepCache().dir), "*/file")
		if len(kept) == 0 {
			t.Fatal("nothing is kept")
		}
		for _, file := range kept {
			if err := os.WriteFile(filepath.Join(b.stepCache().dir, file), []byte("damaged"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		what    string
		step    pipeline.Step
		content string
		more    func(*pipeline.Plan)
		runs    int
	}{
		{"at first", made, "one", nil, 1},
		{"the same", made, "one", nil, 0},
		{"with another input", made, "two", nil, 1},
		{"as at first", made, "one", nil, 0},
		{"with another script", made, "one", func(p *pipeline.Plan) { p.Scripts["make.sh"] += "\ntrue" }, 1},
		{"with --no-cache", made, "one", func(p *pipeline.Plan) { p.Options.NoCache = true }, 1},
		{"with another toolchain", made, "one", func(p *pipeline.Plan) { p.Args["TORCH"] = "2.14.0" }, 1},
		{"damaged", made, "one", damage, 1},
		{"and again", made, "one", nil, 0},
		{"what fetches", fetched, "one", nil, 1},
		{"what fetches, again", fetched, "one", nil, 1},
	} {
		runs, how := times(c.step, c.content, c.more)
		if want := map[bool]ui.Outcome{true: ui.Cached, false: ui.Done}[c.runs == 0]; runs != c.runs || how != want {
			t.Errorf("%s: it ran %d times, want %d; it was said to be %v", c.what, runs, c.runs, how)
		}
	}
}
