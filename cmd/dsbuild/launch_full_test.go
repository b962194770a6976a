//go:build full && linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/slurm"
	"github.com/dsbuild/dsbuild/internal/testkit/slurm/slurmtest"
)

// longest is how long a job may take: it is done in a fraction of that, and what
// hangs must be found.
const longest = 5 * time.Minute

// ground is a folder that all nodes of a cluster share, of a job's own.
type ground struct {
	*slurm.Cluster
	dir string
}

// newGround makes the folder of a job with programs of testdata/launch in it.
func newGround(t *testing.T, c *slurm.Cluster, programs ...string) ground {
	t.Helper()
	dir, err := os.MkdirTemp(c.Home, "job-")
	if err != nil {
		t.Fatal(err)
	}
	p := ground{c, dir}
	for _, name := range programs {
		text, err := os.ReadFile(filepath.Join("testdata", "launch", name))
		if err != nil {
			t.Fatal(err)
		}
		p.write(t, name, string(text))
	}
	p.give(t)
	return p
}

func (p ground) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// give makes everything here the user's, who starts jobs and is not root.
func (p ground) give(t *testing.T) {
	t.Helper()
	command(t, p.dir, "chown", "-R", strconv.Itoa(slurm.UserID), p.dir)
}

// render writes what dsbuild launch renders into the folder, as it is.
func (p ground) render(t *testing.T, args ...string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	kind, rest := args[0], args[1:]
	words := append([]string{"launch", kind, "--python", p.Python, "-o", p.dir + "/"}, rest...)
	if code := run(t.Context(), words, strings.NewReader(""), &stdout, &stderr); code != 0 {
		t.Fatalf("dsbuild %q: exit %d\n%s", words, code, &stderr)
	}
	p.give(t)
}

// sbatch submits a script and returns its job.
func (p ground) sbatch(t *testing.T, script string) batchJob {
	t.Helper()
	cmd := p.UserCommand(t.Context(), "sbatch", "--parsable", script)
	cmd.Dir = p.dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("sbatch %s: %v: %s", script, err, out)
	}
	return batchJob{p, strings.TrimSpace(string(out))}
}

// batchJob is a job of Slurm, submitted from a ground.
type batchJob struct {
	ground
	id string
}

// field is what scontrol says of the job.
func (j batchJob) field(t *testing.T, name string) string {
	t.Helper()
	out, err := j.UserCommand(t.Context(), "scontrol", "show", "job", "--oneliner", j.id).CombinedOutput()
	if err != nil {
		t.Fatalf("scontrol: %v: %s", err, out)
	}
	for _, word := range strings.Fields(string(out)) {
		if value, ok := strings.CutPrefix(word, name+"="); ok {
			return value
		}
	}
	t.Fatalf("scontrol says no %s: %s", name, out)
	return ""
}

// ended waits for the end of the job and returns its state and exit code; "" if
// it has not ended within the limit, and then it is cancelled.
func (j batchJob) ended(t *testing.T, limit time.Duration) string {
	t.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		switch state := j.field(t, "JobState"); state {
		case "PENDING", "CONFIGURING", "RUNNING", "COMPLETING":
		default:
			return state + " " + j.field(t, "ExitCode")
		}
	}
	if out, err := j.UserCommand(t.Context(), "scancel", j.id).CombinedOutput(); err != nil {
		t.Errorf("scancel: %v: %s", err, out)
	}
	return ""
}

// output is what the job has written so far.
func (j batchJob) output(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(j.dir, "*-"+j.id+".out"))
	if err != nil || len(files) > 1 {
		t.Fatalf("%v: the output of job %s is %q", err, j.id, files)
	}
	if len(files) == 0 {
		return ""
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// passes waits for the job's good end and returns what it wrote.
func (j batchJob) passes(t *testing.T) string {
	t.Helper()
	state := j.ended(t, longest)
	out := j.output(t)
	if state != "COMPLETED 0:0" {
		t.Fatalf("job %s: %q\n%s", j.id, state, out)
	}
	return out
}

// spoken is a process's line: what it is, and the sum that it got.
var spoken = regexp.MustCompile(`rank (\d+) of (\d+) on (\S+): sum (\S+), given (.*)`)

// together holds what the processes said against what they must have: each
// there once, as many on each node, all with the same right sum, and with the
// arguments as they were given. It returns the node of each rank.
func together(t *testing.T, out string, nodes, procs int, words ...string) map[int]string {
	t.Helper()
	world := nodes * procs
	where, each := map[int]string{}, map[string]int{}
	for _, m := range spoken.FindAllStringSubmatch(out, -1) {
		rank, err := strconv.Atoi(m[1])
		if _, twice := where[rank]; twice || err != nil {
			t.Errorf("rank %s occurs twice", m[1])
		}
		where[rank] = m[3]
		each[m[3]]++
		if m[2] != strconv.Itoa(world) || m[4] != strconv.Itoa(world*(world+1)/2) {
			t.Errorf("wrong: %s", m[0])
		}
		var given []string
		if err := json.Unmarshal([]byte(m[5]), &given); err != nil || !slices.Equal(given, words) {
			t.Errorf("%v: rank %d was given %q", err, rank, given)
		}
	}
	for rank := range world {
		if where[rank] == "" {
			t.Errorf("rank %d is missing", rank)
		}
	}
	for node, n := range each {
		if n != procs {
			t.Errorf("%d processes on %s", n, node)
		}
	}
	if t.Failed() || len(each) != nodes {
		t.Fatalf("%d nodes took part\n%s", len(each), out)
	}
	return where
}

// arguments are words that a shell would change if it could.
func arguments() []string { return []string{"--text", `it's "$HOME"; *`, ""} }

// ordered checks that the first ranks are on the first node, and so on.
func ordered(t *testing.T, where map[int]string, procs int) {
	t.Helper()
	for rank, node := range where {
		if want := fmt.Sprintf("node%02d", rank/procs+1); node != want {
			t.Errorf("rank %d is on %s, not on %s", rank, node, want)
		}
	}
}

func training(script string) []string { return append([]string{"--", script}, arguments()...) }

// The renderings for Slurm run as they are on four nodes.
func TestFullLaunchSlurm(t *testing.T) {
	c := slurmtest.Up(t, slurm.Options{GPUs: 2, Packages: slurm.TorchAndJAX()})
	for _, form := range []struct {
		name    string
		args    []string
		ordered bool
	}{
		{"static", []string{"--nodes", "4", "--gpus", "2"}, true},
		{"c10d", []string{"--nodes", "4", "--gpus", "0", "--procs", "2", "--rendezvous", "c10d"}, false},
	} {
		t.Run(form.name, func(t *testing.T) {
			begin := time.Now()
			p := newGround(t, c, "sum.py")
			p.render(t, append(append([]string{"slurm"}, form.args...), training("sum.py")...)...)
			where := together(t, p.sbatch(t, "train.sbatch").passes(t), 4, 2, arguments()...)
			if form.ordered {
				ordered(t, where, 2)
			}
			t.Logf("result: Slurm, 4 nodes of 2 processes, %s: right sum on all ranks after %.0f s", form.name, time.Since(begin).Seconds())
		})
	}
	t.Run("workers", func(t *testing.T) { launchWorkers(t, c) })
}

// launchWorkers: the master's script is submitted, then those of the workers, who
// learn where it runs.
func launchWorkers(t *testing.T, c *slurm.Cluster) {
	begin := time.Now()
	p := newGround(t, c, "sum.py")
	p.render(t, append([]string{"slurm", "--form", "workers", "--nodes", "4", "--gpus", "2"}, training("sum.py")...)...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// As from within another job.
	cmd := p.UserCommand(ctx, "env", "SLURM_JOB_ID=999", "SLURM_NNODES=7", "bash", "submit.sh")
	cmd.Dir = p.dir
	said, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	var out strings.Builder
	jobs := regexp.MustCompile(`(?m)^(?:master|worker): job (\d+)$`).FindAllStringSubmatch(string(said), -1)
	if len(jobs) != 4 {
		t.Fatalf("submit.sh says: %s", said)
	}
	for _, m := range jobs {
		out.WriteString(batchJob{p, m[1]}.passes(t))
	}
	together(t, out.String(), 4, 2, arguments()...)
	t.Logf("result: Slurm, master and 3 workers of 2 processes: right sum on all ranks after %.0f s", time.Since(begin).Seconds())
}

// submits runs dsbuild launch --submit on the login node, as from within another
// job, and returns its exit code, what it printed and what it said beside.
func (p ground) submits(t *testing.T, program string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	words := append([]string{"SLURM_JOB_ID=999", "SLURM_NNODES=7", program, "launch", args[0], "--submit", "--python", p.Python}, args[1:]...)
	cmd := p.UserCommand(ctx, "env", words...)
	cmd.Dir = p.dir
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), said.String()
}

// dsbuild gives jobs to Slurm itself, prints what they print and says how they
// ended, on which node.
func TestFullLaunchSubmit(t *testing.T) {
	c := slurmtest.Up(t, slurm.Options{GPUs: 2, Packages: slurm.TorchAndJAX()})
	program := filepath.Join(c.Home, "dsbuild")
	command(t, ".", "cp", makeProgram(t), program)
	t.Run("passes", func(t *testing.T) {
		p := newGround(t, c, "sum.py")
		code, out, said := p.submits(t, program, append([]string{"slurm", "--nodes", "4", "--gpus", "2"}, training("sum.py")...)...)
		together(t, out, 4, 2, arguments()...)
		if last := lastLine(said); code != 0 || !strings.Contains(last, "COMPLETED") || !strings.HasSuffix(last, "exit code 0") {
			t.Errorf("exit %d, says\n%s", code, said)
		}
		t.Logf("result: launch slurm --submit: %s", lastLine(said))
	})
	t.Run("fails on a node", func(t *testing.T) {
		p := newGround(t, c)
		p.write(t, "fail.py", "import os, sys, time\nif os.environ['RANK'] == '2': sys.exit(3)\ntime.sleep(60)\n")
		code, out, said := p.submits(t, program, "slurm", "--nodes", "3", "--gpus", "0", "--procs", "1", "--", "fail.py")
		if last := lastLine(said); code != 1 || !strings.Contains(last, "FAILED") || !strings.Contains(last, " on node03 (task 2: Exited with exit code 1)") {
			t.Errorf("exit %d, says\n%s\n%s", code, said, out)
		}
		t.Logf("result: a job of which a node fails: %s", lastLine(said))
	})
	t.Run("JAX", func(t *testing.T) {
		p := newGround(t, c, "psum.py")
		code, out, said := p.submits(t, program, append([]string{"jax", "-o", "job/", "--nodes", "4", "--gpus", "0"}, training("psum.py")...)...)
		together(t, out, 4, 1, arguments()...)
		if code != 0 {
			t.Errorf("exit %d, says\n%s", code, said)
		}
	})
	t.Run("can never run", func(t *testing.T) {
		code, out, said := newGround(t, c).submits(t, program, "slurm", "--nodes", "9", "--", "train.py")
		if code != 1 || out != "" || !strings.Contains(said, "job rejected by Slurm") {
			t.Errorf("exit %d, says\n%s\n%s", code, said, out)
		}
	})
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// byHand runs a command on each of the first nodes at once, and returns what all
// of them wrote. They must all end well.
func (p ground) byHand(t *testing.T, nodes int, line func(i int) string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	outs, errs := make([]string, nodes), make([]error, nodes)
	var wg sync.WaitGroup
	for i := range nodes {
		wg.Go(func() {
			out, err := p.on(ctx, p.Nodes[i], line(i)).CombinedOutput()
			outs[i] = string(out)
			if err != nil {
				errs[i] = fmt.Errorf("%s: %w", p.Nodes[i].Name, err)
			}
		})
	}
	wg.Wait()
	all := strings.Join(outs, "")
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("%v\n%s", err, all)
	}
	return all
}

// on is a shell line in the job's folder on a node, past Slurm.
func (p ground) on(ctx context.Context, n *slurm.Node, line string) *exec.Cmd {
	return n.Command(ctx, "bash", "-c", `cd "$1" && eval "$2"`, "bash", p.dir, line)
}

// inventory writes one of the first nodes.
func (p ground) inventory(t *testing.T, nodes, slots int) string {
	t.Helper()
	p.write(t, "inventory.yaml", fmt.Sprintf("defaults: {slots: %d}\nnodes:\n  - {hosts: 'node[01-%02d]', python: %s}\n", slots, nodes, p.Python))
	return filepath.Join(p.dir, "inventory.yaml")
}

// block is the command for a node: its script of the rendering.
func block(i int) string { return fmt.Sprintf("bash node-%d-node%02d.sh", i, i+1) }

// The blocks of the torchrun form, each on its node of an inventory.
func TestFullLaunchTorchrun(t *testing.T) {
	c := slurmtest.Up(t, slurm.Options{Packages: slurm.TorchAndJAX()})
	for _, rendezvous := range []string{"static", "c10d"} {
		t.Run(rendezvous, func(t *testing.T) {
			begin := time.Now()
			p := newGround(t, c, "sum.py")
			p.render(t, append([]string{"torchrun", "-i", p.inventory(t, 4, 2), "--rendezvous", rendezvous}, training("sum.py")...)...)
			where := together(t, p.byHand(t, 4, block), 4, 2, arguments()...)
			if rendezvous == "static" {
				ordered(t, where, 2)
			}
			t.Logf("result: torchrun by hand, 4 nodes of 2 processes, %s: right sum on all ranks after %.0f s", rendezvous, time.Since(begin).Seconds())
		})
	}
}

// JAX: one process of many by Slurm, and by hand.
func TestFullLaunchJAX(t *testing.T) {
	c := slurmtest.Up(t, slurm.Options{Packages: slurm.TorchAndJAX()})
	t.Run("slurm", func(t *testing.T) {
		begin := time.Now()
		p := newGround(t, c, "psum.py")
		p.render(t, append([]string{"jax", "--nodes", "4", "--gpus", "0"}, training("psum.py")...)...)
		ordered(t, together(t, p.sbatch(t, "train.sbatch").passes(t), 4, 1, arguments()...), 1)
		t.Logf("result: JAX by Slurm, 4 nodes of 1 process: right psum on all ranks after %.0f s", time.Since(begin).Seconds())
	})
	t.Run("manual", func(t *testing.T) {
		begin := time.Now()
		p := newGround(t, c, "psum.py")
		p.render(t, append([]string{"jax", "-i", p.inventory(t, 2, 2), "--gpus", "0", "--procs", "2"}, training("psum.py")...)...)
		ordered(t, together(t, p.byHand(t, 2, block), 2, 2, arguments()...), 2)
		t.Logf("result: JAX by hand, 2 nodes of 2 processes: right psum on all ranks after %.0f s", time.Since(begin).Seconds())
	})
	t.Run("example", func(t *testing.T) { launchExampleOfJAX(t, c) })
}

// launchExampleOfJAX: the program that is shipped fits its line on four processes;
// the first alone logs and saves.
func launchExampleOfJAX(t *testing.T, c *slurm.Cluster) {
	p := newGround(t, c)
	text, err := os.ReadFile("../../launch/python/example_train.py")
	if err != nil {
		t.Fatal(err)
	}
	p.write(t, "example_train.py", string(text))
	p.render(t, "jax", "--nodes", "4", "--gpus", "0", "--", "example_train.py", "--save", "my line.json")
	out := p.sbatch(t, "train.sbatch").passes(t)
	saved, err := os.ReadFile(filepath.Join(p.dir, "my line.json"))
	var line struct {
		W, B      float64
		Processes int
	}
	if err == nil {
		err = json.Unmarshal(saved, &line)
	}
	if err != nil || line.Processes != 4 || line.W < 2.99 || line.W > 3.01 || line.B < 0.99 || line.B > 1.01 {
		t.Errorf("%v: %s\n%s", err, saved, out)
	}
	if strings.Count(out, "saved my line.json") != 1 || strings.Count(out, "step 0:") != 1 {
		t.Errorf("not rank 0 alone logs and saves:\n%s", out)
	}
}

// starts is a process's line in the elastic program, when it begins or begins anew.
var starts = regexp.MustCompile(`rank (\d+) of (\d+) on (\S+): from step (\d+), agent (\d+), worker (\d+)`)

// checkpoint is how far the elastic program has come, and with how many.
type checkpoint struct{ Step, Present int }

func (p ground) checkpoint() (c checkpoint) {
	if text, err := os.ReadFile(filepath.Join(p.dir, "checkpoint.json")); err == nil {
		_ = json.Unmarshal(text, &c)
	}
	return c
}

// underWay waits until so many processes have trained some steps together.
func (p ground) underWay(t *testing.T, processes int, output func() string) {
	t.Helper()
	for end := time.Now().Add(longest); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		switch c := p.checkpoint(); {
		case c.Step >= 5 && c.Present == processes:
			return
		case c.Step >= 60:
			t.Fatalf("it was done by %d processes\n%s", c.Present, output())
		}
	}
	t.Fatalf("%d processes do not train: %+v\n%s", processes, p.checkpoint(), output())
}

// goneOn holds what the elastic program said against what it must: three began,
// and after the loss two came to the end, from a step that the three had saved.
func (p ground) goneOn(t *testing.T, out string, lost checkpoint) {
	t.Helper()
	began, again := map[string]bool{}, map[string]bool{}
	for _, m := range starts.FindAllStringSubmatch(out, -1) {
		step, _ := strconv.Atoi(m[4]) //nolint:errcheck // digits
		switch {
		case m[2] == "3" && step == 0:
			began[m[3]] = true
		case m[2] == "2" && step >= lost.Step:
			again[m[3]] = true
		default:
			t.Errorf("unexpected: %s", m[0])
		}
	}
	if len(began) != 3 || len(again) != 2 || !again["node01"] || !again["node02"] {
		t.Errorf("three of %v began, two of %v went on", began, again)
	}
	for rank := range 2 {
		if !strings.Contains(out, fmt.Sprintf("rank %d of 2 on ", rank)) || strings.Count(out, ": done at step 60") != 2 {
			t.Errorf("rank %d of 2 did not come to the end", rank)
		}
	}
	if c := p.checkpoint(); c != (checkpoint{60, 2}) {
		t.Errorf("the last checkpoint is %+v", c)
	}
	if t.Failed() {
		t.Fatal(out)
	}
}

// One of three nodes is lost: the training goes on with two, from the last
// checkpoint, and ends well.
func TestFullLaunchElastic(t *testing.T) {
	t.Run("agent killed", func(t *testing.T) {
		t.Parallel()
		c := slurmtest.Up(t, slurm.Options{Nodes: 3, Packages: slurm.TorchAndJAX()})
		e := newElastic(t, c)
		begin := time.Now()
		lost := e.kill(t)
		ended := e.ended(t)
		for i, code := range ended {
			if want := map[bool]int{true: -1, false: 0}[i == 2]; code != want {
				t.Errorf("%s ended with %d", c.Nodes[i].Name, code)
			}
		}
		e.goneOn(t, e.output(), lost)
		t.Logf("result: elastic 2 to 3 nodes on a platform, an agent of three killed at step %d: ended 0 with two after %.0f s more", lost.Step, time.Since(begin).Seconds())
	})
	t.Run("without restarts", func(t *testing.T) {
		t.Parallel()
		c := slurmtest.Up(t, slurm.Options{Nodes: 3, Packages: slurm.TorchAndJAX()})
		e := newElastic(t, c, "MAX_RESTARTS=0")
		e.kill(t)
		for i, code := range e.ended(t)[:2] {
			if code != 1 {
				t.Errorf("%s ended with %d\n%s", c.Nodes[i].Name, code, e.output())
			}
		}
		if strings.Contains(e.output(), "done at step") {
			t.Error(e.output())
		}
		t.Log("result: elastic 2 to 3 nodes with MAX_RESTARTS=0, an agent of three killed: the others end with 1")
	})
	t.Run("node of Slurm lost", func(t *testing.T) {
		t.Parallel()
		launchElasticSlurm(t)
	})
}

// elastic is an elastic job of three containers of a platform, one on each node.
type elastic struct {
	ground
	codes chan nodeCode
}

type nodeCode struct{ node, code int }

func newElastic(t *testing.T, c *slurm.Cluster, variables ...string) elastic {
	t.Helper()
	e := elastic{newGround(t, c, "elastic.py"), make(chan nodeCode, 3)}
	e.render(t, "aistation", "--nodes", "2:3", "--gpus", "0", "--procs", "1", "--", "elastic.py")
	given := append([]string{"MASTER_ADDR=node01", "MASTER_PORT=29500", "WORLD_SIZE=3"}, variables...)
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	t.Cleanup(cancel)
	for i, n := range c.Nodes {
		line := fmt.Sprintf("exec env %s RANK=%d bash train.sh >%s.out 2>&1", strings.Join(given, " "), i, n.Name)
		cmd := e.on(ctx, n, line)
		go func() {
			_ = cmd.Run()
			e.codes <- nodeCode{i, cmd.ProcessState.ExitCode()}
		}()
	}
	return e
}

// output is what all of the containers have written.
func (e elastic) output() string {
	var b strings.Builder
	for _, n := range e.Nodes {
		text, _ := os.ReadFile(filepath.Join(e.dir, n.Name+".out")) //nolint:errcheck // it may not have begun
		b.Write(text)
	}
	return b.String()
}

// kill kills the agent of the third node with its worker, as the end of a
// container does, when all three train.
func (e elastic) kill(t *testing.T) checkpoint {
	t.Helper()
	e.underWay(t, 3, e.output)
	for _, m := range starts.FindAllStringSubmatch(e.output(), -1) {
		if m[3] == "node03" {
			lost := e.checkpoint()
			if out, err := e.Nodes[2].Command(t.Context(), "kill", "-KILL", m[5], m[6]).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			return lost
		}
	}
	t.Fatalf("nothing of node03 in %s", e.output())
	return checkpoint{}
}

// ended waits for the ends on all nodes and returns their codes; -1 is a signal.
func (e elastic) ended(t *testing.T) []int {
	t.Helper()
	codes := make([]int, len(e.Nodes))
	for range codes {
		c := <-e.codes
		codes[c.node] = c.code
	}
	return codes
}

// launchElasticSlurm: the rendering for Slurm survives that a node is switched off.
func launchElasticSlurm(t *testing.T) {
	c := slurmtest.Up(t, slurm.Options{Nodes: 3, Packages: slurm.TorchAndJAX()})
	p := newGround(t, c, "elastic.py")
	p.render(t, "slurm", "--nodes", "2:3", "--gpus", "0", "--procs", "1", "--", "elastic.py")
	j := p.sbatch(t, "train.sbatch")
	p.underWay(t, 3, func() string { return j.output(t) })
	lost, begin := p.checkpoint(), time.Now()
	if err := c.Nodes[2].PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.goneOn(t, j.passes(t), lost)
	t.Logf("result: elastic 2 to 3 nodes by Slurm, a node of three switched off at step %d: ended 0 with two after %.0f s more", lost.Step, time.Since(begin).Seconds())
}

// One word of the rendering is changed to what many scripts say: the job hangs, or
// one node forms the whole world and the others are not in it.
func TestFullLaunchMistakes(t *testing.T) {
	c := slurmtest.Up(t, slurm.Options{Nodes: 2, Packages: slurm.TorchAndJAX()})
	right := newGround(t, c, "sum.py")
	right.render(t, append([]string{"slurm", "--nodes", "2", "--gpus", "0", "--procs", "2"}, training("sum.py")...)...)
	begin := time.Now()
	together(t, right.sbatch(t, "train.sbatch").passes(t), 2, 2, arguments()...)
	took := time.Since(begin)

	const rank = `--node-rank="$SLURM_NODEID"`
	t.Run("tasks", func(t *testing.T) {
		j := right.changed(t, "--ntasks-per-node=1", "--ntasks-per-node=2", rank, `--node-rank="$SLURM_PROCID"`)
		state := j.ended(t, longest)
		ranks := map[string]bool{}
		for _, m := range spoken.FindAllStringSubmatch(j.output(t), -1) {
			ranks[m[1]+" of "+m[2]+" on "+m[3]+", "+m[4]] = true
		}
		for rank := range 4 {
			if !ranks[fmt.Sprintf("%d of 4 on node01, 10", rank)] || len(ranks) != 4 {
				t.Fatalf("node01 is not the world alone: %v\n%s", ranks, j.output(t))
			}
		}
		t.Logf("result: mistake: a task for each process, the rank from SLURM_PROCID: node01 is all of the world of two nodes, the job ends %s", state)
	})
	t.Run("hang", func(t *testing.T) {
		// Behind the quote that ends the words for the nodes it is expanded here.
		batch := right.changed(t, rank, `--node-rank='"$SLURM_PROCID"'`)
		local := right.changed(t, `MASTER_ADDR=${nodes%%$'\n'*}`, "MASTER_ADDR=localhost")
		time.Sleep(2 * took)
		for _, n := range c.Nodes {
			// The brackets keep the pattern from finding itself.
			out, err := n.Command(t.Context(), "sh", "-c", `cat /proc/*/cmdline | tr '\0' ' ' | grep -c -- '--[n]ode-rank=0 --master-addr=node01'`).CombinedOutput()
			if err != nil {
				t.Errorf("%v: no agent of %s is node 0: %s", err, n.Name, out)
			}
		}
		for _, j := range []batchJob{batch, local} {
			if state := j.ended(t, time.Second); state != "" || spoken.MatchString(j.output(t)) {
				t.Errorf("it does not hang: %q\n%s", state, j.output(t))
			}
		}
		t.Logf("result: mistakes: the rank on the batch line, MASTER_ADDR=localhost: no word for %.0f s, where the rendering is done in %.0f s", 2*took.Seconds(), took.Seconds())
	})
}

// changed submits a rendering in which words were replaced, from a ground of its own.
func (p ground) changed(t *testing.T, words ...string) batchJob {
	t.Helper()
	script, err := os.ReadFile(filepath.Join(p.dir, "train.sbatch"))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(words); i += 2 {
		if !bytes.Contains(script, []byte(words[i])) {
			t.Fatalf("the rendering has no %s", words[i])
		}
	}
	other := newGround(t, p.Cluster, "sum.py")
	other.write(t, "train.sbatch", strings.NewReplacer(words...).Replace(string(script)))
	other.give(t)
	return other.sbatch(t, "train.sbatch")
}

// reachable runs OpenSSH on the first nodes, which root may enter from each other.
func (p ground) reachable(t *testing.T, nodes int) {
	t.Helper()
	command(t, p.dir, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "key")
	const line = `umask 077; mkdir -p /run/sshd /root/.ssh && cp key /root/.ssh/id && ssh-keygen -q -t ed25519 -N '' -f /run/host_key &&
printf 'IdentityFile /root/.ssh/id\nStrictHostKeyChecking no\nUserKnownHostsFile /root/.ssh/known\n' >/etc/ssh/ssh_config &&
exec /usr/sbin/sshd -f /dev/null -h /run/host_key -o StrictModes=no -o AuthorizedKeysFile="$PWD/key.pub" -o PidFile=none`
	for i := range nodes {
		if out, err := p.on(t.Context(), p.Nodes[i], line).CombinedOutput(); err != nil {
			t.Fatalf("sshd on %s: %v: %s", p.Nodes[i].Name, err, out)
		}
	}
}
