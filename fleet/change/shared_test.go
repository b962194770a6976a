package change_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
)

// place is a node without a network: its commands run here, or in memory.
type place struct {
	path     string // of its folder
	in       string // its file system
	sees     string // what is installed
	action   change.Action
	fails    string                  // the command that breaks the connection: write, list
	says     func(dir string) string // what a lying node lists
	answers  bool                    // a node outside the run
	commands []string                // that it got: write, list, remove
	times    int                     // how often another run removes its words
}

// nodes dials places by the name of a host. With memory set, scripts do not run.
type nodes struct {
	mu     sync.Mutex
	all    map[string]*place
	memory map[string]map[string]bool // the words, by path and name of the directory for them
}

func (d *nodes) Dial(ctx context.Context, t remote.Target) (remote.Conn, error) {
	p := d.all[t.Name]
	if p.action == "" && !p.answers { // silent, outside the run
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return conn{d, p}, nil
}

type conn struct {
	dialer *nodes
	place  *place
}

func (c conn) Close() error                             { return nil }
func (c conn) Put(context.Context, remote.Upload) error { return errors.ErrUnsupported }
func (c conn) Run(ctx context.Context, cmd remote.Command) error {
	if cmd.Argv[0] != "sh" {
		return c.answer(cmd)
	}
	kind := "remove"
	for word, of := range map[string]string{"mkdir --": "write", "head -n": "list"} {
		if strings.Contains(cmd.Argv[2], word) {
			kind = of
		}
	}
	args := cmd.Argv[4:]
	c.dialer.mu.Lock()
	c.place.commands = append(c.place.commands, kind)
	c.dialer.mu.Unlock()
	switch {
	case c.place.fails == kind:
		return remote.ErrLost
	case kind == "list" && c.place.says != nil:
		fmt.Fprintln(cmd.Stdout, c.place.says(args[1]))
		return nil
	case c.dialer.memory != nil:
		c.remember(kind, args, cmd.Stdout)
		return nil
	}
	if kind == "list" && c.place.times > 0 {
		c.place.times--
		if err := os.RemoveAll(filepath.Join(c.place.path, args[1])); err != nil {
			return err
		}
	}
	run := exec.CommandContext(ctx, cmd.Argv[0], cmd.Argv[1:]...)
	run.Stdout, run.Stderr = cmd.Stdout, cmd.Stderr
	err := run.Run()
	if ended := (*exec.ExitError)(nil); errors.As(err, &ended) {
		return &remote.ExitError{Code: ended.ExitCode()}
	}
	return err
}

// answer answers the program of a node outside the run: a job is on it.
func (c conn) answer(cmd remote.Command) error {
	sent, err := io.ReadAll(cmd.Stdin)
	if err != nil {
		return err
	}
	var told struct{ Mark string }
	if err := json.NewDecoder(bytes.NewReader(sent[len(remote.EndShell):])).Decode(&told); err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.Stdout, "\n%s{\"place\": %q, \"current\": \"\", \"python\": \"p\", \"users\": {\"\": {\"in_use\": [{\"pid\": 7, \"user\": \"me\", \"command\": \"train.py\", \"job\": \"\"}]}}}\n", told.Mark, c.place.path)
	return err
}

// remember does what a script does.
func (c conn) remember(kind string, args []string, out io.Writer) {
	c.dialer.mu.Lock()
	defer c.dialer.mu.Unlock()
	key := args[0] + "/" + args[1]
	words := c.dialer.memory[key]
	switch kind {
	case "write":
		if words == nil {
			c.dialer.memory[key] = map[string]bool{}
		}
		c.dialer.memory[key][args[2]] = true
	case "list":
		var sorted []string
		for word := range words {
			sorted = append(sorted, word)
		}
		slices.Sort(sorted)
		io.WriteString(out, strings.Join(sorted[:min(len(sorted), 8)], "\n")) //nolint:errcheck // memory
		if len(words) == 1 && words[args[3]] {
			delete(c.dialer.memory, key)
		}
	case "remove":
		delete(c.dialer.memory, key)
	}
}

// survey finds out which of the places share a folder: those of the run, in the order of their names.
func survey(t *testing.T, ctx context.Context, d *nodes, outside ...string) (*change.Sharing, change.Decisions, []string) {
	t.Helper()
	opt := fleet.Options{Dialer: d, Reporter: ui.New(io.Discard, ui.Options{}), Forks: 8}
	var names []string
	for name := range d.all {
		names = append(names, name)
	}
	slices.Sort(names)
	var run []string
	for _, name := range names {
		h := inventory.Host{Name: name, Node: name, Address: name}
		if slices.Contains(outside, name) {
			opt.Outside = append(opt.Outside, h)
		} else {
			opt.Hosts, run = append(opt.Hosts, h), append(run, name)
		}
	}
	r := change.NewRun(opt, change.Rules{})
	t.Cleanup(r.Close)
	if err := r.Fleet.Probe(t.Context(), time.Minute, func(context.Context, int) error { return nil }); err != nil {
		t.Fatal(err)
	}
	var plan change.Decisions
	var folders []change.Folder
	for i, name := range run {
		p := d.all[name]
		plan = append(plan, &change.Decision{Name: name, Action: p.action, Leader: i})
		folders = append(folders, change.Folder{Node: r.Fleet.Nodes[i], Path: p.path, Type: p.in, Sees: p.sees})
	}
	s := r.FindSharing(ctx, plan, folders, node.Script{Program: node.NewProgram("find_users")})
	s.Explain(plan, "the environment")
	return s, plan, run
}

// groups writes which nodes share: "a b, c".
func groups(s *change.Sharing, run []string) string {
	var ids []string
	members := map[string][]string{}
	for i, name := range run {
		id := s.ID(i)
		if id == "" {
			continue
		}
		if members[id] == nil {
			ids = append(ids, id)
		}
		members[id] = append(members[id], name)
	}
	var texts []string
	for _, id := range ids {
		texts = append(texts, strings.Join(members[id], " "))
	}
	return strings.Join(texts, ", ")
}

// Nodes share a folder if they see each other's words there, by whatever name and whatever others say.
func TestSharingIsFoundByTrying(t *testing.T) {
	t.Parallel()
	t0 := t.Name()
	const install, verify, refuse = change.Install, change.UpToDate, change.Refuse
	for name, c := range map[string]struct {
		places func(dir func(string) string) map[string]*place
		want   string
		failed string // nodes that become absent
	}{
		"three groups, by several names": {func(dir func(string) string) map[string]*place {
			must(t, os.Symlink(dir("x"), dir("x")+"-link"))
			return map[string]*place{
				"a": {path: dir("x"), action: install}, "b": {path: dir("x") + "-link", action: install}, "c": {path: dir("y"), action: install},
				"d": {path: dir("y"), action: change.Rollback}, "e": {path: dir("z"), action: install}, "f": {path: dir("x"), action: install},
			}
		}, "a b f, c d, e", ""},
		"not to be changed": {func(dir func(string) string) map[string]*place {
			return map[string]*place{
				"a": {path: dir("x"), action: install}, "b": {path: dir("x"), action: refuse}, "c": {path: dir("x"), action: verify},
				"d": {path: dir("y"), action: refuse}, "e": {path: dir("x"), action: verify, sees: "another version"},
			}
		}, "a b c", ""},
		"a folder that is not there yet": {func(dir func(string) string) map[string]*place {
			return map[string]*place{
				"a": {path: dir("x") + "/new/er", action: install}, "b": {path: dir("x") + "/new/er", action: install}, "c": {path: dir("y") + "/new/er", action: install},
			}
		}, "a b, c", ""},
		"a writer dies": {func(dir func(string) string) map[string]*place {
			return map[string]*place{
				"a": {path: dir("x"), action: install}, "b": {path: dir("x"), action: install, fails: "write"}, "c": {path: dir("x"), action: install},
			}
		}, "a c", "b"},
		"a node dies before it lists": {func(dir func(string) string) map[string]*place {
			return map[string]*place{
				"a": {path: dir("x"), action: install, fails: "list"}, "b": {path: dir("x"), action: install}, "c": {path: dir("x"), action: install},
			}
		}, "b c", "a"},
		"no room for a word": {func(dir func(string) string) map[string]*place {
			return map[string]*place{"a": {path: dir("x"), action: install}, "b": {path: "/proc", action: install}}
		}, "a", "b"},
		// It sees the words of two others, which do not see each other's.
		"a liar joins two": {func(dir func(string) string) map[string]*place {
			x, y := dir("x"), dir("y")
			both := func(trial string) string {
				return listing(x, trial) + "\n" + listing(y, trial)
			}
			return map[string]*place{
				"a": {path: x, action: install}, "b": {path: y, action: install}, "c": {path: dir("z"), action: refuse, says: both},
			}
		}, "a c, b", ""},
		"a liar guesses": {func(dir func(string) string) map[string]*place {
			says := func(string) string { return strings.Repeat("A", 26) + "\n" + strings.Repeat("7", 26) }
			return map[string]*place{"a": {path: dir("x"), action: install}, "b": {path: dir("y"), action: refuse, says: says}}
		}, "a", ""},
		"a node that prints without end": {func(dir func(string) string) map[string]*place {
			says := func(string) string { return strings.Repeat("7", 17<<20) }
			return map[string]*place{"a": {path: dir("x"), action: install}, "b": {path: dir("x"), action: refuse, says: says}}
		}, "a", "b"},
		"equal leftovers": {func(dir func(string) string) map[string]*place {
			for _, at := range []string{dir("x"), dir("y")} {
				must(t, os.MkdirAll(filepath.Join(at, ".dsbuild-try-old"), 0o755), os.WriteFile(filepath.Join(at, ".dsbuild-try-old", strings.Repeat("2", 26)), nil, 0o644))
			}
			return map[string]*place{"a": {path: dir("x"), action: install}, "b": {path: dir("y"), action: install}}
		}, "a, b", ""},
		"another run removes the words": {func(dir func(string) string) map[string]*place {
			return map[string]*place{"a": {path: dir("x"), action: install, times: 2}, "b": {path: dir("x"), action: install}}
		}, "a b", ""},
		"another run always removes them": {func(dir func(string) string) map[string]*place {
			return map[string]*place{"a": {path: dir("x"), action: install, times: 9}, "b": {path: dir("y"), action: install}}
		}, "b", "a"},
		"no node is to be changed": {func(dir func(string) string) map[string]*place {
			return map[string]*place{"a": {path: dir("x"), action: verify}, "b": {path: dir("x"), action: refuse}}
		}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			old := time.Date(2020, 2, 3, 4, 5, 6, 789012345, time.UTC)
			dir := func(name string) string {
				path := filepath.Join(root, name)
				must(t, os.MkdirAll(path, 0o755))
				return path
			}
			d := &nodes{all: c.places(dir)}
			for _, name := range []string{"x", "y", "z"} {
				must(t, os.Chtimes(dir(name), old, old))
			}
			s, plan, run := survey(t, t.Context(), d)
			if got := groups(s, run); got != c.want {
				t.Errorf("groups %q, want %q", got, c.want)
			}
			var failed []string
			for _, p := range plan {
				if p.Action == change.Absent {
					failed = append(failed, p.Name)
				}
			}
			if got := strings.Join(failed, " "); got != c.failed {
				t.Errorf("failed: %q, want %q", got, c.failed)
			}
			for _, name := range []string{"x", "y", "z"} {
				left, err := filepath.Glob(filepath.Join(dir(name), ".dsbuild-try-*"))
				left = slices.DeleteFunc(left, func(path string) bool { return strings.HasSuffix(path, "-old") })
				info, statErr := os.Stat(dir(name))
				must(t, err, statErr)
				if len(left) > 0 || !info.ModTime().Equal(old) && !strings.HasPrefix(t.Name(), t0+"/another_run") {
					t.Errorf("%s: left %q, changed at %v, want that nothing shows the trial", name, left, info.ModTime())
				}
			}
		})
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// listing is what a node may read of the words in a folder.
func listing(path, trial string) string {
	entries, _ := os.ReadDir(filepath.Join(path, trial)) // none: nothing to read
	var names []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return strings.Join(names, "\n")
}

// A folder that something else has changed meanwhile keeps the time of that change: Python knows new modules by it.
func TestTrialKeepsALaterTime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	touch := func(string) string {
		must(t, os.WriteFile(filepath.Join(dir, "module.py"), nil, 0o644))
		return ""
	}
	old := time.Now().Add(-time.Hour)
	must(t, os.Chtimes(dir, old, old))
	survey(t, t.Context(), &nodes{all: map[string]*place{
		"a": {path: dir, action: change.Install}, "b": {path: t.TempDir(), action: change.Refuse, says: touch},
	}})
	if info, err := os.Stat(dir); err != nil || time.Since(info.ModTime()) > time.Minute {
		t.Errorf("%v, %v: want the time of the other change", info.ModTime(), err)
	}
}

// An interrupt removes every word.
func TestInterruptedTrial(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	x, y := t.TempDir(), t.TempDir()
	interrupt := func(string) string { stop(); return "" }
	survey(t, ctx, &nodes{all: map[string]*place{
		"a": {path: x, action: change.Install}, "b": {path: x, action: change.Install}, "c": {path: y, action: change.Install},
		"d": {path: y, action: change.Refuse, says: interrupt},
	}})
	for _, dir := range []string{x, y} {
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left %v, %v", left, err)
		}
	}
}

// Nodes outside the run are asked where the file system can be shared, and only there. Those that share the folder count
// as users of it; those that do not answer are named.
func TestNodesOutsideTheRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testNodesOutsideTheRun)
}

func testNodesOutsideTheRun(t *testing.T) {
	for fs, c := range map[string]struct {
		want  string
		asked int
	}{
		"nfs4": {"also changes n2, which shares the environment; on nfs4: cannot ask n4, which may use it", 1},
		"ext4": {"", 0},
		// The server of the file system has it on a disk of its own.
		"ext4, exported": {"also changes n2, which shares the environment; on ext4, exported: cannot ask n4, which may use it", 1},
		"9p":             {"also changes n2, which shares the environment; on 9p: cannot ask n4, which may use it", 1},
	} {
		d := &nodes{memory: map[string]map[string]bool{}, all: map[string]*place{
			"n1": {path: "/shared", action: change.Install, in: fs}, "n2": {path: "/shared", answers: true}, "n3": {path: "/own", answers: true}, "n4": {path: "/shared"},
		}}
		start := time.Now()
		s, plan, _ := survey(t, t.Context(), d, "n2", "n3", "n4")
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("%s: %v, want 5s at most", fs, took)
		}
		if got := strings.Join(plan[0].Notes, "; "); got != c.want {
			t.Errorf("%s: %q, want %q", fs, got, c.want)
		}
		if n := len(d.all["n2"].commands); n != c.asked {
			t.Errorf("%s: n2 got %d commands, want %d", fs, n, c.asked)
		}
		var hosts []string
		for _, h := range s.Others(0) {
			hosts = append(hosts, h.Name)
		}
		plan.ApplyInUse(make([]node.Processes, 1), change.InUse{})
		if fs == "ext4" {
			if len(hosts) > 0 || plan[0].Action != change.Install {
				t.Errorf("ext4: %v, %+v", hosts, plan[0])
			}
			continue
		}
		why := strings.Join(plan[0].Reasons, "; ")
		if !slices.Equal(hosts, []string{"n2", "n4"}) || plan[0].Action != change.Refuse || why != "shares an environment with n2: environment in use by pid 7 (me): train.py" {
			t.Errorf("%s: %v, %s: %q", fs, hosts, plan[0].Action, why)
		}
	}
}

// The number of commands is linear in the number of nodes: two for each that is to be changed, and one for each folder that several share.
func TestTrialIsLinear(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		folders, writers int
		want             int
	}{
		"each its own":          {300, 300, 600},
		"one folder":            {1, 300, 601},
		"three folders":         {3, 300, 603},
		"one to be changed":     {1, 1, 301},
		"none to be changed":    {1, 0, 0},
		"pairs, half to change": {150, 150, 450},
	} {
		d := &nodes{all: map[string]*place{}, memory: map[string]map[string]bool{}}
		for i := range 300 {
			p := &place{path: fmt.Sprint("/f", i%c.folders), action: change.Install}
			if i >= c.writers {
				p.action = change.UpToDate
			}
			d.all[fmt.Sprintf("n%03d", i)] = p
		}
		start := time.Now()
		s, _, run := survey(t, t.Context(), d)
		got := 0
		for _, p := range d.all {
			got += len(p.commands)
		}
		t.Logf("%s: %d commands for 300 nodes, %v", name, got, time.Since(start).Round(time.Millisecond))
		if got != c.want || len(d.memory) > 0 {
			t.Errorf("%s: %d commands, want %d; left %v", name, got, c.want, d.memory)
		}
		if is := strings.Count(groups(s, run), ",") + 1; c.writers > 0 && is != c.folders {
			t.Errorf("%s: %d groups, want %d", name, is, c.folders)
		}
	}
}
