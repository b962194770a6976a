//go:build linux

package main

import (
	"archive/zip"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

// Faults that befall the program as a whole, here a process of its own, and real
// nodes. What a node has is always found out from its files, by code that shares
// nothing with dsbuild's.

// faultFleet is a fleet of real nodes that go from one version to another and back.
type faultFleet struct {
	*nodes.Fleet
	home   string
	wheels [2]faultWheel
	size   int64      // of the largest file in them: it makes moments in the middle long enough
	tidy   [][]string // what lies in each node's home and temporary folder
	took   time.Duration
	random *mathrand.Rand // of moments
}

// faultWheel is a wheel, and what it puts where.
type faultWheel struct {
	path, version, sha256 string
	files                 map[string]string // sha256 by path below site-packages
	scripts               []string
}

// ballast is the size of that file in long tests.
const ballast = 20 << 20

// newFaultFleet has nodes that run the first of two versions, each with so much
// ballast.
func newFaultFleet(t *testing.T, opt nodes.Options, size int64) *faultFleet {
	t.Helper()
	opt.Env = nodes.FakeTorch
	f := &faultFleet{size: size, Fleet: nodestest.Up(t, opt), home: t.TempDir()}
	for i, version := range []string{"0.19.7", "0.19.8"} {
		f.wheels[i] = newFaultWheel(t, version, f.size)
	}
	for i, n := range f.Nodes {
		info := filepath.Join(f.site(i), "einops-0.8.0.dist-info")
		err := os.Mkdir(info, 0o755)
		if err == nil {
			err = os.WriteFile(filepath.Join(info, "METADATA"), []byte("Metadata-Version: 2.1\nName: einops\nVersion: 0.8.0\n"), 0o644)
		}
		if err != nil {
			t.Fatal(n.Name, err)
		}
	}
	begin := time.Now()
	f.deploys(t, 0)
	f.took = time.Since(begin)
	seed := uint64(begin.UnixNano())
	if text := os.Getenv("DSBUILD_TEST_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("random moments: DSBUILD_TEST_SEED=%d; a deploy takes %s", seed, f.took)
	f.random = mathrand.New(mathrand.NewPCG(seed, 0))
	for i := range f.Nodes {
		f.tidy = append(f.tidy, f.litter(t, i))
	}
	return f
}

func newFaultWheel(t *testing.T, version string, size int64) faultWheel {
	t.Helper()
	noise := make([]byte, size)
	rand.Read(noise)
	files := wheeltest.LoadedByPython()
	files["deepspeed/ballast.bin"] = string(noise)
	for i := range 50 {
		files[fmt.Sprintf("deepspeed/runtime/part%d.py", i)] = fmt.Sprintf("version = %q\n", version)
	}
	files["deepspeed/only_"+strings.ReplaceAll(version, ".", "_")+".py"] = ""
	path := wheeltest.Packed(t, t.TempDir(), wheeltest.Options{
		Version: version, Python: "cp311", Torch: nodes.FakeTorchVersion, CUDA: nodes.FakeTorchCUDA, CPU: wheel.CPUv2, Files: files,
		Ops:      []wheeltest.Op{{Name: "cpu_adam", Dir: "adam", SASS: []string{"8.0"}}},
		Scripts:  map[string]string{"ds_report": "#!python\nprint('" + version + "')\n"},
		Requires: []string{"einops"},
	})
	w := faultWheel{path: path, files: map[string]string{}}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	w.sha256 = sum(data)
	z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range z.File {
		r, err := file.Open()
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		switch _, script, is := strings.Cut(file.Name, ".data/scripts/"); {
		case is:
			w.scripts = append(w.scripts, script)
		case strings.HasSuffix(file.Name, ".dist-info/RECORD"):
			w.version, _, _ = strings.Cut(strings.TrimPrefix(file.Name, "deepspeed-"), ".dist-info")
		default:
			w.files[file.Name] = sum(text)
		}
	}
	return w
}

func sum(data []byte) string {
	s := sha256.Sum256(data)
	return fmt.Sprintf("%x", s)
}

func (f *faultFleet) venv(i int) string { return filepath.Dir(filepath.Dir(f.Nodes[i].Python)) }
func (f *faultFleet) site(i int) string {
	return filepath.Join(f.venv(i), "lib", "python3.11", "site-packages")
}
func (f *faultFleet) own(i int) string { return filepath.Join(f.site(i), ".dsbuild") }

// first is the fleet without its other nodes.
func (f *faultFleet) first() *faultFleet {
	fleet, one := *f.Fleet, *f
	fleet.Nodes = fleet.Nodes[:1]
	one.Fleet = &fleet
	return &one
}

// command prepares the program.
func (f *faultFleet) command(t *testing.T, args ...string) (cmd *exec.Cmd, stdout, stderr *bytes.Buffer) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.CommandContext(t.Context(), self)
	cmd.Args, cmd.Dir = append([]string{"dsbuild"}, args...), f.home
	cmd.Env = []string{"HOME=" + f.home, "PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8"}
	stdout, stderr = new(bytes.Buffer), new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	return cmd, stdout, stderr
}

// deployArgs are those that bring a wheel to every node, whatever they have.
func (f *faultFleet) deployArgs(w int, more ...string) []string {
	args := []string{"deploy", f.Inventory, "--wheel", f.wheels[w].path, "--force", "--json"}
	return slices.Concat(args, f.limit(), more)
}

// limit are the flags that leave other nodes out.
func (f *faultFleet) limit() []string {
	var names []string
	for _, n := range f.Nodes {
		names = append(names, n.Name)
	}
	return []string{"--limit", strings.Join(names, ",")}
}

// deploys brings a wheel to every node, which must succeed.
func (f *faultFleet) deploys(t *testing.T, w int) {
	t.Helper()
	cmd, stdout, stderr := f.command(t, f.deployArgs(w)...)
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, stdout, stderr)
	}
	for i, n := range f.Nodes {
		if has := f.has(t, i); has != w {
			t.Fatalf("%s has %s", n.Name, f.name(has))
		}
		if left := f.left(t, i); len(left) > 0 {
			t.Errorf("%s: left behind: %q", n.Name, left)
		}
		if f.tidy != nil && !slices.Equal(f.litter(t, i), f.tidy[i]) {
			t.Errorf("%s: its home and temporary folder hold %q, before %q", n.Name, f.litter(t, i), f.tidy[i])
		}
	}
}

// name is a version in words.
func (f *faultFleet) name(w int) string {
	if w < 0 {
		return "no DeepSpeed, or a mixture"
	}
	return f.wheels[w].version
}

// has is which wheel a node has, complete: its files are those of the wheel, and
// nothing else of DeepSpeed's is there. -1: neither, and the test has failed.
func (f *faultFleet) has(t *testing.T, i int) int {
	t.Helper()
	infos, _ := filepath.Glob(filepath.Join(f.site(i), "deepspeed-*"))
	for w := range f.wheels {
		if len(infos) == 1 && filepath.Base(infos[0]) == "deepspeed-"+f.wheels[w].version+".dist-info" {
			if err := f.wheels[w].complete(f.venv(i), f.site(i)); err != nil {
				t.Errorf("%s has %s, but %v", f.Nodes[i].Name, f.name(w), err)
				return -1
			}
			return w
		}
	}
	t.Errorf("%s has %q", f.Nodes[i].Name, infos)
	return -1
}

// complete says in what an environment is not just that wheel.
func (w faultWheel) complete(venv, site string) error {
	for name, want := range w.files {
		data, err := os.ReadFile(filepath.Join(site, name))
		if err != nil {
			return err
		}
		if sum(data) != want {
			return fmt.Errorf("%s is not the wheel's", name)
		}
	}
	for _, script := range w.scripts {
		text, err := os.ReadFile(filepath.Join(venv, "bin", script))
		if err != nil {
			return err
		}
		if !strings.Contains(string(text), strings.SplitN(w.version, "+", 2)[0]) {
			return fmt.Errorf("%s is not the wheel's", script)
		}
	}
	if err := w.asRecorded(site); err != nil {
		return err
	}
	return filepath.WalkDir(site, func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(site, path)
		if err != nil || d.IsDir() || filepath.Base(filepath.Dir(path)) == "__pycache__" {
			return err
		}
		if _, ours := w.files[name]; strings.HasPrefix(name, "deepspeed/") && !ours || strings.HasPrefix(name, "~") {
			return fmt.Errorf("%s is there too", name)
		}
		return nil
	})
}

// asRecorded holds every file against the RECORD that was installed.
func (w faultWheel) asRecorded(site string) error {
	text, err := os.ReadFile(filepath.Join(site, "deepspeed-"+w.version+".dist-info", "RECORD"))
	if err != nil {
		return err
	}
	rows, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	if err != nil {
		return err
	}
	for _, row := range rows {
		digest, hashed := strings.CutPrefix(row[1], "sha256=")
		if !hashed {
			continue
		}
		data, err := os.ReadFile(filepath.Join(site, row[0]))
		if err != nil {
			return err
		}
		got := sha256.Sum256(data)
		if base64.RawURLEncoding.EncodeToString(got[:]) != digest || strconv.Itoa(len(data)) != row[2] {
			return fmt.Errorf("%s is not what RECORD says", row[0])
		}
	}
	return nil
}

// left is what lies in dsbuild's folder on a node and is not kept on purpose.
func (f *faultFleet) left(t *testing.T, i int) []string {
	t.Helper()
	entries, err := os.ReadDir(f.own(i))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if !slices.Contains([]string{"lock", "installed.json", "journal.jsonl", "previous", "wheel"}, e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names
}

func exitStatus(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	return -1
}

// endedBy reports whether a program was ended by a signal that it did not catch.
func endedBy(err error, signal syscall.Signal) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == signal
}

// litter is what lies in a node's home and temporary folder.
func (f *faultFleet) litter(t *testing.T, i int) []string {
	t.Helper()
	var names []string
	for _, dir := range []string{f.Nodes[i].Home, filepath.Join(f.Nodes[i].Dir, "tmp")} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			names = append(names, path)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return names
}

// settle waits until a node is left alone by what a killed run has started there.
func (f *faultFleet) settle(t *testing.T, i int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); f.Busy(i); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s does not come to rest", f.Nodes[i].Name)
		}
	}
}

// all are the wheels that the nodes have.
func (f *faultFleet) all(t *testing.T) []int {
	t.Helper()
	var all []int
	for i := range f.Nodes {
		all = append(all, f.has(t, i))
	}
	return all
}

// other is a version that some node does not have.
func (f *faultFleet) other(has []int) int { return 1 - max(0, has[0]) }

// counts are how often something came about.
type counts map[string]int

func (c counts) String() string {
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(c)) {
		parts = append(parts, fmt.Sprintf("%s %d", what, c[what]))
	}
	return strings.Join(parts, ", ")
}

// kept are the versions that a rollback would bring back; what a node has where it
// would be refused. Not all: some node would be left without any.
func (f *faultFleet) kept(t *testing.T, has []int) (back []int, all bool) {
	t.Helper()
	for i, n := range f.Nodes {
		text, err := os.ReadFile(filepath.Join(f.own(i), "previous", "change.json"))
		at := slices.IndexFunc(f.wheels[:], func(w faultWheel) bool {
			return strings.Contains(string(text), `"before": {"version": "`+w.version+`"`)
		})
		switch {
		case errors.Is(err, fs.ErrNotExist):
			at = has[i]
		case err != nil:
			t.Fatal(n.Name, err)
		case at < 0:
			return nil, false
		}
		back = append(back, at)
	}
	return back, true
}

// interrupts presses Ctrl-C at random moments of so many runs, every fourth of which
// is a rollback. Each time every node has what it had or what was to come, and the
// report says which.
func (f *faultFleet) interrupts(t *testing.T, times int) (came, steps counts) {
	t.Helper()
	came, steps = counts{}, counts{}
	has := f.all(t)
	for n := range times {
		args, targets := f.deployArgs(f.other(has)), slices.Repeat([]int{f.other(has)}, len(has))
		after := time.Duration(f.random.Float64() * 1.1 * float64(f.took))
		back, all := f.kept(t, has)
		rollback := n%4 == 2 && all
		if rollback {
			args, targets = append([]string{"rollback", f.Inventory, "--json"}, f.limit()...), back
			after /= 3 // it sends nothing and needs no pip
			came["runs that were rollbacks"]++
		}
		cmd, stdout, stderr := f.command(t, args...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(after)
		cmd.Process.Signal(syscall.SIGINT) //nolint:errcheck // it may have ended
		err := cmd.Wait()
		now := f.all(t)
		if endedBy(err, syscall.SIGINT) && stdout.Len()+stderr.Len() == 0 {
			came["runs that had not begun to listen"]++ // a program's first milliseconds: the nodes are looked at below
		} else if code := exitStatus(err); code != exitInterrupted && code != exitOK && !(rollback && code == exitNodes) { // none is kept
			t.Errorf("Ctrl-C after %s: exit %d\n%s", after, code, stderr)
		}
		var r report.Report
		if stdout.Len() == 0 {
			came["without a report"]++
		} else if err := json.Unmarshal(stdout.Bytes(), &r); err != nil || len(r.Nodes) != len(has) {
			t.Fatalf("%v: %s", err, stdout)
		}
		for i, w := range now {
			f.interrupted(t, i, has[i], w, targets[i], r)
			switch {
			case w == has[i]:
				came["old"]++
			default:
				came["new"]++
			}
			if len(r.Nodes) > 0 {
				steps[r.Nodes[i].Step]++
			}
		}
		if t.Failed() {
			t.Fatalf("Ctrl-C after %s of dsbuild %s; the nodes had %v and have %v; the report:\n%s\n%s", after, args[0], has, now, stdout, stderr)
		}
		has = now
	}
	return came, steps
}

// interrupted checks a node after Ctrl-C.
func (f *faultFleet) interrupted(t *testing.T, i, was, is, target int, r report.Report) {
	t.Helper()
	name := f.Nodes[i].Name
	if is != was && is != target {
		t.Errorf("%s had %s, was to have %s, and has %s", name, f.name(was), f.name(target), f.name(is))
	}
	if left := f.left(t, i); len(left) > 0 {
		t.Errorf("%s: left behind: %q", name, left)
	}
	if len(r.Nodes) == 0 { // interrupted before any node was asked
		if is != was {
			t.Errorf("%s was changed, and there is no report", name)
		}
		return
	}
	n := r.Nodes[i]
	if n.StateUnknown {
		if is != was {
			t.Errorf("%s was changed unseen: %+v", name, n)
		}
		return
	}
	if n.After == nil || n.After.Version != f.wheels[is].version || n.After.SHA256 != f.wheels[is].sha256 {
		t.Errorf("%s has %s, and the report says %+v", name, f.name(is), n.After)
	}
	if n.Changed != (is != was) && target != was {
		t.Errorf("%s: changed is %v", name, n.Changed)
	}
}

// moment is one in the middle of a deploy: some time after its start, or a state
// of a node that is told by its files.
type moment struct {
	name  string
	after time.Duration
	is    func(own, site string) bool
}

// anyMoments are so many random ones.
func (f *faultFleet) anyMoments(n int) []moment {
	all := make([]moment, n)
	for i := range all {
		after := time.Duration(f.random.Float64() * float64(f.took))
		all[i] = moment{name: fmt.Sprintf("%.2f s after the start", after.Seconds()), after: after}
	}
	return all
}

// moments are those that were thought of, in their order, of wheels with so much
// ballast.
func moments(size int64) []moment {
	some := func(pattern string, size int64) bool {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			if st, err := os.Stat(file); err == nil && st.Size() >= size {
				return true
			}
		}
		return false
	}
	change := func(own string) bool { return some(filepath.Join(own, "change.json"), 1) }
	return []moment{
		{name: "while the wheel is sent", is: func(own, _ string) bool { return some(filepath.Join(own, "inbox", "*.part"), 1<<20) }},
		{name: "between upload and rename", is: func(own, _ string) bool { return some(filepath.Join(own, "inbox", "*.part"), size) }},
		{name: "between rename and install", is: func(own, _ string) bool { return some(filepath.Join(own, "inbox", "*.whl"), 1) }},
		{name: "the old version is being moved aside", is: func(own, _ string) bool { return change(own) }},
		{name: "pip installs", is: func(own, site string) bool {
			return change(own) && some(filepath.Join(site, "deepspeed", "__init__.py"), 0) && !some(filepath.Join(site, "../../../bin/ds_report"), 0)
		}},
		{name: "the new version is verified", is: func(own, site string) bool {
			return some(filepath.Join(site, "deepspeed-*.dist-info", "RECORD"), 1) && some(filepath.Join(own, "kept-*", "*", "RECORD"), 1)
		}},
		{name: "it is being made final", is: func(own, _ string) bool {
			text, err := os.ReadFile(filepath.Join(own, "change.json"))
			return err == nil && bytes.Contains(text, []byte(`"done": true`))
		}},
	}
}

// reach waits until node 0 is at a moment of a run that has just begun; false if
// that ended before.
func (f *faultFleet) reach(m moment, ended <-chan struct{}) bool {
	for began := time.Now(); ; {
		if m.is == nil && time.Since(began) > m.after || m.is != nil && m.is(f.own(0), f.site(0)) {
			return true
		}
		select {
		case <-ended:
			return false
		case <-time.After(time.Millisecond):
		}
	}
}

// start starts the program and returns what ends with it.
func (f *faultFleet) start(t *testing.T, args ...string) (cmd *exec.Cmd, ended chan struct{}, stdout, stderr *bytes.Buffer) {
	t.Helper()
	cmd, stdout, stderr = f.command(t, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended = make(chan struct{})
	go func() {
		cmd.Wait() //nolint:errcheck // how it ended is in cmd.ProcessState
		close(ended)
	}()
	return cmd, ended, stdout, stderr
}

// mustReach fails a test that has missed most of its moments: it has shown nothing.
func mustReach(t *testing.T, at []moment, missed []string) {
	t.Helper()
	if 2*len(missed) > len(at) {
		t.Errorf("%d of %d moments were missed: %s; want at least half of them reached", len(missed), len(at), strings.Join(missed, ", "))
	}
}

// kills kills the program at each moment and looks what the nodes make of it. The
// next run must succeed and leave nothing behind.
func (f *faultFleet) kills(t *testing.T, at []moment) (came counts, missed []string) {
	t.Helper()
	came = counts{}
	has := f.all(t)
	for _, m := range at {
		target := f.other(has)
		cmd, ended, _, stderr := f.start(t, f.deployArgs(target)...)
		if !f.reach(m, ended) {
			missed = append(missed, m.name)
		}
		cmd.Process.Kill() //nolint:errcheck // it may have ended
		<-ended
		for i, n := range f.Nodes {
			f.settle(t, i)
			now := f.has(t, i)
			switch now {
			case has[i]:
				came["old"]++
			case target:
				came["new"]++
			default:
				t.Errorf("killed %s: %s has %s", m.name, n.Name, f.name(now))
			}
		}
		if t.Failed() {
			t.Fatalf("killed %s\n%s", m.name, stderr)
		}
		f.deploys(t, target)
		has = f.all(t)
	}
	mustReach(t, at, missed)
	return came, missed
}

// reboots takes node 0 away at each moment, as a power cut or a reset does, and
// brings it back: every other time while the run still goes on, unless that is to be
// late always. The other nodes get what they were to get, the report says no more of
// node 0 than can be known, and the next run finds the old or the new version there
// once it has put it right.
func (f *faultFleet) reboots(t *testing.T, at []moment, down, up func(t *testing.T), late bool) (came counts, missed []string) {
	t.Helper()
	came = counts{}
	has := f.all(t)
	for n, m := range at {
		target := f.other(has)
		_, ended, stdout, stderr := f.start(t, f.deployArgs(target)...)
		if !f.reach(m, ended) {
			missed = append(missed, m.name)
		}
		down(t)
		soon := !late && n%2 == 0
		if soon {
			up(t)
		}
		<-ended
		if !soon {
			up(t)
		}
		if strings.Contains(stderr.String(), "cannot read the inventory") { // it is on the node's disk, which was cut before
			missed = append(missed, m.name)
			continue
		}
		var r report.Report
		if err := json.Unmarshal(stdout.Bytes(), &r); err != nil || len(r.Nodes) != len(has) {
			t.Fatalf("%v: %s\n%s", err, stdout, stderr)
		}
		for i, one := range r.Nodes[1:] {
			if one.Status != report.OK || f.has(t, i+1) != target {
				t.Errorf("node 0 went down %s, and of another: %+v", m.name, one)
			}
		}
		came[f.afterReboot(t, m, r.Nodes[0], has[0], target)]++
		if t.Failed() {
			t.Fatalf("node 0 went down %s, back soon: %v\n%s\n%s", m.name, soon, stdout, stderr)
		}
		has = f.all(t)
	}
	mustReach(t, at, missed)
	return came, missed
}

// afterReboot has the next run put node 0 right, and compares what it finds with
// what the one before has told.
func (f *faultFleet) afterReboot(t *testing.T, m moment, told report.Node, was, target int) string {
	t.Helper()
	cmd, stdout, stderr := f.command(t, f.deployArgs(target)...)
	if err := cmd.Run(); err != nil {
		t.Fatalf("after node 0 went down %s: %v\n%s\n%s", m.name, err, stdout, stderr)
	}
	var r report.Report
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	found := ""
	for w, name := range map[int]string{was: "old", target: "new"} {
		if before := r.Nodes[0].Before; before != nil && before.SHA256 == f.wheels[w].sha256 && before.Version == f.wheels[w].version {
			found = name
		}
	}
	if found == "" {
		t.Errorf("the next run found %+v, %+v", r.Nodes[0].Before, r.Nodes[0])
	}
	if told.StateUnknown {
		found += " (not told)"
	} else if told.After == nil || r.Nodes[0].Before == nil || *told.After != *r.Nodes[0].Before {
		t.Errorf("told was %+v, the next run found %+v", told.After, r.Nodes[0].Before)
	}
	if now := f.all(t); slices.Contains(now, 1-target) || slices.Contains(now, -1) || len(f.left(t, 0)) > 0 {
		t.Errorf("after the next run the nodes have %v; left behind: %q", now, f.left(t, 0))
	}
	return found
}

func (f *faultFleet) crash(t *testing.T) {
	t.Helper()
	if err := f.Kill(0); err != nil {
		t.Fatal(err)
	}
}

func (f *faultFleet) boot(t *testing.T) {
	t.Helper()
	if err := f.Start(0); err != nil {
		t.Fatal(err)
	}
}

// crossing has two runs bring different wheels to the same nodes at once. Each node
// ends with one of them, complete; whoever does not get the lock says who holds it.
func (f *faultFleet) crossing(t *testing.T, times int) counts {
	t.Helper()
	came := counts{}
	for range times {
		var reports [2]report.Report
		var ends [2]chan struct{}
		var outs [2]*bytes.Buffer
		for w := range f.wheels {
			_, ends[w], outs[w], _ = f.start(t, f.deployArgs(w)...)
			time.Sleep(time.Duration(f.random.Float64() * float64(f.took) / 2))
		}
		for w := range f.wheels {
			<-ends[w]
			if err := json.Unmarshal(outs[w].Bytes(), &reports[w]); err != nil {
				t.Fatalf("%v: %s", err, outs[w])
			}
		}
		for i, n := range f.Nodes {
			is := f.has(t, i)
			if is < 0 || reports[is].Nodes[i].Status != report.OK {
				t.Errorf("%s has %s, and the run that was to bring it says %+v", n.Name, f.name(is), reports[max(0, is)].Nodes[i])
			}
			if left := f.left(t, i); len(left) > 0 {
				t.Errorf("%s: left behind: %q", n.Name, left)
			}
			switch other := reports[1-max(0, is)].Nodes[i]; {
			case other.Status == report.OK:
				came["one after the other"]++
			case strings.Contains(other.Error, "another deploy is changing this environment (run ") && strings.Contains(other.Error, " by "):
				came["one alone"]++
			default:
				t.Errorf("%s: the other run says %+v", n.Name, other)
			}
		}
	}
	return came
}

// A few of each; make test-full has many, with pip itself.
func TestFaultsOfAFleet(t *testing.T) {
	t.Parallel()
	f := newFaultFleet(t, nodes.Options{Count: 2, QuickPip: true}, 8<<20)
	t.Run("Ctrl-C", func(t *testing.T) {
		came, steps := f.first().interrupts(t, 3)
		t.Logf("%s; at %s", came, steps)
	})
	at := moments(f.size)
	t.Run("killed", func(t *testing.T) {
		came, missed := f.first().kills(t, []moment{at[1], at[4]})
		t.Logf("%s; missed %q", came, missed)
	})
	t.Run("a node reboots", func(t *testing.T) {
		came, missed := f.reboots(t, at[4:5], f.crash, f.boot, false)
		t.Logf("%s; missed %q", came, missed)
	})
	t.Run("two deploys at once", func(t *testing.T) { t.Log(f.crossing(t, 1)) })
}
