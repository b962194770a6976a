//go:build linux

package check

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/python"
	"github.com/dsbuild/dsbuild/internal/testkit/schema"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
)

// here is a node that is this machine. A variable marks its processes.
type here struct {
	remote.Conn
	mark string
}

func (h here) Run(ctx context.Context, cmd remote.Command) error {
	line, err := remote.CommandLine(cmd)
	if err != nil {
		return err
	}
	c := exec.CommandContext(ctx, "sh", "-c", line)
	c.Env = append(os.Environ(), "DSBUILD_TEST_CHECK="+h.mark)
	c.Stdout, c.Stderr, c.WaitDelay = cmd.Stdout, cmd.Stderr, time.Minute
	var stdin io.WriteCloser
	if cmd.Stdin != nil {
		if stdin, err = c.StdinPipe(); err != nil {
			return err
		}
	}
	if err := c.Start(); err != nil {
		return err
	}
	if stdin != nil {
		go func() {
			io.Copy(stdin, cmd.Stdin) //nolint:errcheck // the program's status is the verdict
			stdin.Close()
		}()
	}
	err = c.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return &remote.ExitError{Code: exit.ExitCode()}
	}
	return err
}

func (here) Close() error { return nil }

// everywhere dials nodes that are all this machine, except those that are down.
type everywhere struct {
	mark string
	down map[string]bool
}

func (e everywhere) Dial(_ context.Context, t remote.Target) (remote.Conn, error) {
	if e.down[t.Name] {
		return nil, remote.ErrDial
	}
	return here{mark: e.mark}, nil
}

// processes are the folders in /proc of the nodes' processes with a mark.
func processes(t *testing.T, mark string) (dirs []string) {
	t.Helper()
	environs, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range environs {
		if text, err := os.ReadFile(file); err == nil && bytes.Contains(text, []byte("DSBUILD_TEST_CHECK="+mark)) {
			dirs = append(dirs, filepath.Dir(file))
		}
	}
	return dirs
}

// running are the command lines of the nodes' processes with a mark.
func running(t *testing.T, mark string) (found []string) {
	t.Helper()
	for _, dir := range processes(t, mark) {
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline")) //nolint:errcheck // it may have ended
		found = append(found, string(bytes.ReplaceAll(line, []byte{0}, []byte(" "))))
	}
	return found
}

func hostsNamed(names ...string) []inventory.Host {
	var all []inventory.Host
	for _, name := range names {
		all = append(all, inventory.Host{Name: name, Node: name, Address: "127.0.0.1", Python: "python3"})
	}
	return all
}

func ofKind(n NodeReport, kind Check, level Level) (texts []string) {
	for _, f := range n.Findings {
		if f.Check == kind && f.Level == level {
			texts = append(texts, f.Text)
		}
	}
	return texts
}

// A check of three nodes that are this machine and of one that is down reports the faults, and
// leaves nothing.
func TestRun(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	data, out := t.TempDir(), filepath.Join(t.TempDir(), "still", "to be made")
	if err := os.WriteFile(filepath.Join(data, "part-0"), []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	mark := t.Name() + random()
	rep := Run(t.Context(), Options{
		Options: fleet.Options{Hosts: hostsNamed("n1", "n2", "n3", "n4"), Dialer: everywhere{mark, map[string]bool{"n4": true}}, Reporter: ui.New(io.Discard, ui.Options{})},
		Port:    freePort(t), Data: []string{data, "/does/not/exist"}, Output: []string{out}, Skip: []Check{Devices, Collective},
	})
	if left := running(t, mark); len(left) > 0 {
		t.Errorf("left running: %q", left)
	}
	for _, dir := range []string{os.Getenv("TMPDIR"), filepath.Dir(filepath.Dir(out))} {
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			t.Errorf("%v: left in %s: %v", err, dir, entries)
		}
	}
	if rep.Ready || rep.Err() == nil || rep.Summary.Unreachable != 1 || rep.Pairs != (Pairs{Tried: 6}) {
		t.Errorf("%+v, %+v", rep.Summary, rep.Pairs)
	}
	for _, n := range rep.Nodes[:3] {
		if n.Status != report.Failed || n.Facts == nil {
			t.Errorf("%s: %s", n.Name, n.Status)
		}
		if got := ofKind(n, Names, Error); len(got) > 0 { // literal loopback addresses: all nodes are this machine
			t.Errorf("%s: names: %q, want none", n.Name, got)
		}
		if got := ofKind(n, Paths, Error); len(got) != 1 || got[0] != "--data /does/not/exist: node reported: No such file or directory" {
			t.Errorf("%s: paths: %q", n.Name, got)
		}
		for _, kind := range []Check{Versions, Variables, Port, Network} {
			if got := ofKind(n, kind, Error); len(got) > 0 {
				t.Errorf("%s: %s: %q", n.Name, kind, got)
			}
		}
	}
	if n := rep.Nodes[3]; n.Status != report.Unreachable || len(n.Findings) != 1 {
		t.Errorf("%+v", n)
	}
	var document bytes.Buffer
	if err := ui.JSON(&document, rep); err != nil {
		t.Fatal(err)
	}
	schema.Check(t, "check", document.Bytes())
	var printed bytes.Buffer
	if err := rep.Print(&printed); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"n[1-3]  failed       0", "n4      unreachable  -", "n4: connect: cannot connect\n", "connections between nodes: 6 of 6\n", "not checked: collective: skipped by --skip\n", "0 of 4 nodes ready, 3 failed, 1 unreachable\n"} {
		if !strings.Contains(printed.String(), part) {
			t.Errorf("it is not said: %q\n%s", part, &printed)
		}
	}
}

// A single node is ready by itself: dsbuild checks no network.
func TestRunOne(t *testing.T) {
	rep := Run(t.Context(), Options{
		Options: fleet.Options{Hosts: hostsNamed("n1"), Dialer: everywhere{mark: "x"}, Reporter: ui.New(io.Discard, ui.Options{})}, Port: freePort(t), Skip: []Check{Variables, Devices, Disk, Collective},
	})
	if !rep.Ready || rep.Err() != nil || len(rep.NotChecked) != 4 || rep.Verdict() != "1 node ready for a job" {
		t.Errorf("%s: %+v, %+v", rep.Verdict(), rep.Causes, rep.NotChecked)
	}
}

// The finding for a taken port suggests a free one.
func TestRunTakenPort(t *testing.T) {
	port := freePort(t)
	door := listen(t, port)
	defer door.Close()
	rep := Run(t.Context(), Options{
		Options: fleet.Options{Hosts: hostsNamed("n1", "n2"), Dialer: everywhere{mark: "x"}, Reporter: ui.New(io.Discard, ui.Options{})}, Port: port,
		Skip: []Check{Versions, Variables, Devices, Disk, Collective},
	})
	got := rep.Nodes[0].Findings
	found := false
	for _, f := range got {
		if f.Check == Port {
			found = strings.HasPrefix(f.Text, "master port ") && strings.Contains(f.Text, "in use: Address already in use") && strings.Contains(f.Hint, "use another port: --port ")
		}
	}
	if !found || len(ofKind(rep.Nodes[1], Port, Error)) > 0 {
		t.Errorf("%+v", got)
	}
}

// The agent asks NVIDIA's programs one question at a time: an older program that refuses one
// question answers the others.
func TestRunDevices(t *testing.T) {
	bin := t.TempDir()
	for name, script := range map[string]string{
		"nvidia-smi": `case "$*" in
*compute_cap*) printf 'NVIDIA A100-SXM4-80GB, 8.0, 580.65.06\nNVIDIA A100-SXM4-80GB, 8.0, 580.65.06\n' ;;
*index,uuid*) printf '0, GPU-a\n1, GPU-b\n' ;;
*ecc.errors*) printf '0, 0\n1, 3\n' ;;
*remapped-rows*) printf '00000000:07:00.0, 0, 0\n00000000:0F:00.0, 1, 0\n' ;;
*fabric*) printf '0, Completed\n1, In Progress\n' ;;
*compute-apps*) ;;
*) echo 'Field is not a valid field to query.' >&2; exit 2 ;;
esac`,
		"dmesg": `echo '[1.0] NVRM: Xid (PCI:0000:0f:00): 79, pid=1, GPU has fallen off the bus.'; seq 1000`,
	} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	hosts := hostsNamed("n1")
	hosts[0].Slots = 4
	rep := Run(t.Context(), Options{Options: fleet.Options{Hosts: hosts, Dialer: everywhere{mark: "x"}, Reporter: ui.New(io.Discard, ui.Options{})}, Port: freePort(t), Skip: []Check{Collective}})
	got, want := ofKind(rep.Nodes[0], Devices, Error), []string{
		"2 GPUs, but slots is 4 in the inventory",
		"GPU 1: 3 uncorrectable ECC errors since the driver was loaded",
		"GPU 00000000:0f:00.0: memory rows pending remapping",
		"GPU 1: NVLink switches not ready (in progress), so CUDA fails with error 802",
		"GPU 0000:0f:00: XID 79, once since boot",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

// withPython runs the agent by another interpreter.
func withPython(t *testing.T, interpreter string, jax bool) *run {
	t.Helper()
	r := &run{fleet: fleet.New(fleet.Options{}), opt: Options{Options: fleet.Options{Reporter: ui.New(io.Discard, ui.Options{})}, Port: freePort(t), JAX: jax, StageTimeout: 2 * time.Minute}, events: newEventQueue()}
	for i, host := range hostsNamed("n1", "n2") {
		m := &member{Node: &fleet.Node{Host: host, Status: report.OK}, index: i, token: strings.ToLower(random() + random())[:32], route: &routed{"lo", "127.0.0.1"}, facts: &node.Facts{}}
		r.members = append(r.members, m)
		req := agentRequest{LimitS: 20, Run: "r", Token: m.token, Master: "127.0.0.1", Data: []string{}, Output: []string{}}
		var err error
		m.agent, err = startAgent(t.Context(), here{mark: t.Name()}, interpreter, req, func(e event) {
			e.from = m
			r.events.add(e)
		}, &m.survey)
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(r.closeAll)
	return r
}

// JAX tests a JAX job: real processes connect, sum and disconnect. Slurm's variables, which JAX
// reads by itself, do not mislead it.
func TestSumByJAX(t *testing.T) {
	needs.Time(t)
	dir, err := python.Environment(t.Context(), python.EnvironmentOptions{Packages: []string{"jax==0.10.2"}, Log: func(line string) { t.Log(line) }})
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	for name, value := range map[string]string{"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "n[1-9]", "SLURM_NTASKS": "9", "SLURM_PROCID": "8", "SLURM_LOCALID": "5"} {
		t.Setenv(name, value)
	}
	r := withPython(t, filepath.Join(dir, "bin", "python"), true)
	r.checkCollectives(t.Context())
	if got := r.said(); got != "" || len(r.sums) != 1 {
		t.Fatalf("%+v\n%s", r.sums, got)
	}
	if s := r.sums[0]; !s.OK || s.Backend != "jax" || s.Processes != 2 || s.Seconds <= 0 || s.Latency <= 0 || s.Bandwidth <= 0 {
		t.Errorf("%+v", s)
	}
}

// If JAX is missing, each node gets a finding.
func TestSumWithoutJAX(t *testing.T) {
	t.Setenv("PYTHONPATH", t.TempDir())
	if err := os.WriteFile(filepath.Join(os.Getenv("PYTHONPATH"), "jax.py"), []byte("raise ModuleNotFoundError('no JAX here')\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	r := withPython(t, "python3", true)
	r.checkCollectives(t.Context())
	if got := r.said(); strings.Count(got, "JAX was not imported: node reported: ModuleNotFoundError: no JAX here") != 2 || strings.Contains(got, "torch") {
		t.Errorf("%+v\n%s", r.sums, got)
	}
}

// surveyed is an agent that runs on this machine, after its survey.
func surveyed(t *testing.T, runner remote.Runner) *agent.Session {
	t.Helper()
	req := agentRequest{LimitS: 20, Run: "r", Token: strings.Repeat("w", 32), Master: "127.0.0.1", Data: []string{}, Output: []string{}}
	a, err := startAgent(t.Context(), runner, "python3", req, func(event) {}, &survey{})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// scarce is a node on which a program may open few files.
type scarce struct{ here }

func (s scarce) Run(ctx context.Context, cmd remote.Command) error {
	cmd.Argv = append([]string{"sh", "-c", `ulimit -n 1024; exec "$0" "$@"`}, cmd.Argv...)
	return s.here.Run(ctx, cmd)
}

// Callers that say nothing do not keep other nodes out.
func TestIdleStrangers(t *testing.T) {
	r := ready(2)
	for _, m := range r.members {
		m.token = strings.ToLower(random() + random())[:32]
		req := agentRequest{LimitS: 20, Run: "r", Token: m.token, Master: "127.0.0.1", Data: []string{}, Output: []string{}}
		var err error
		if m.agent, err = startAgent(t.Context(), scarce{here{mark: t.Name()}}, "python3", req, func(event) {}, &m.survey); err != nil {
			t.Fatal(err)
		}
		m.route = &routed{"lo", "127.0.0.1"}
	}
	defer r.closeAll()
	for range 1100 {
		c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(r.members[0].survey.Port)))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	var got dialled
	order := agent.Request{"do": "dial", "peers": r.listCalls(r.members[1], r.members, false), "window": 64, "limit_s": 3, "answer_s": 5}
	if err := r.members[1].agent.Call(t.Context(), order, &got); err != nil || got.Reached != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}

// deaf is a node on which the input of programs ends when cut is closed.
type deaf struct {
	here
	cut <-chan struct{}
}

func (d deaf) Run(ctx context.Context, cmd remote.Command) error {
	out, in := io.Pipe()
	go io.Copy(in, cmd.Stdin) //nolint:errcheck // ends with the program
	go func() {
		<-d.cut
		in.Close()
	}()
	cmd.Stdin = out
	return d.here.Run(ctx, cmd)
}

// A node whose agent has ended holds up a collective, whatever the others report.
func TestBlameForALostNode(t *testing.T) {
	w := team()
	w.handleEvent(event{from: w.team[0], Rank: 0, Stage: "failed", Error: "connection closed by peer"})
	w.team[2].agent = surveyed(t, here{mark: t.Name()})
	w.team[2].agent.End()
	w.findCulprits(2, stages(false, false)[1], 0) //nolint:errcheck // a finding reports it
	if got := w.said(); !strings.HasPrefix(got, "n3 error: lost during the all-reduce: agent on the node exited unexpectedly") || strings.Contains(got, "\n") {
		t.Error(got)
	}
}

// When the connection ends, an agent ends, with all processes that it started.
func TestAgentEndsWithItsConnection(t *testing.T) {
	mark := t.Name() + random()
	for name, stop := range map[string]func(a *agent.Session, cut chan struct{}){
		"orderly":    func(a *agent.Session, _ chan struct{}) { a.End() },
		"input ends": func(_ *agent.Session, cut chan struct{}) { close(cut) },
	} {
		t.Run(name, func(t *testing.T) {
			cut := make(chan struct{})
			a := surveyed(t, deaf{here{mark: mark}, cut})
			order := agent.Request{"do": "collect", "backend": "gloo", "rank": 0, "local": 2, "world": 2, "master": "127.0.0.1", "port": 1, "limit_s": 60, "bytes": 4}
			if err := a.Call(t.Context(), order, nil); err != nil {
				t.Fatal(err)
			}
			if len(running(t, mark)) == 0 {
				t.Fatal("nothing runs")
			}
			stop(a, cut)
			for end := time.Now().Add(time.Minute); len(running(t, mark)) > 0 || a.Err() == nil; time.Sleep(20 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("left running: %q, %v", running(t, mark), a.Err())
				}
			}
		})
	}
}

// dsbuild does not trust a node's messages: they are bounded, have the right form, and are
// harmless.
func TestHostileNode(t *testing.T) {
	for _, text := range []string{`{"surprise": 1}`, `[]`, `{"event": {"rank": "x"}}`, `{"event": {"surprise": 1}}`} {
		if _, err := decodeEvent(json.RawMessage(text)); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
	m := &member{Node: &fleet.Node{Host: inventory.Host{Name: "n"}}}
	m.addFinding(Names, Error, "try \x1b[2Jthis", "a name\x1b]0;title\x07\nn2: names: is another's\u202e")
	if f := m.findings[0]; f.Text != "a name n2: names: is another's" || f.Hint != "try this" {
		t.Errorf("%q", f)
	}
}

// The agent finds an old lock, and no young one.
func TestStaleLocks(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TORCH_EXTENSIONS_DIR", dir)
	for i, name := range []string{"old", "young"} {
		lock := filepath.Join(dir, name, "lock")
		if err := errors.Join(os.MkdirAll(filepath.Dir(lock), 0o755), os.WriteFile(lock, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(time.Duration(i-1) * 3 * time.Hour)
		if err := os.Chtimes(lock, at, at); err != nil {
			t.Fatal(err)
		}
	}
	var s survey
	req := agentRequest{LimitS: 20, Run: "r", Token: strings.Repeat("w", 32), Master: "127.0.0.1", Data: []string{}, Output: []string{}}
	a, err := startAgent(t.Context(), here{mark: t.Name()}, "python3", req, func(event) {}, &s)
	if err != nil {
		t.Fatal(err)
	}
	defer a.End()
	if o := s.Operators.OK; o == nil || o.Folder != dir || o.Type == "" || len(o.Locks) != 1 || o.Locks[0].path != filepath.Join(dir, "old", "lock") {
		t.Errorf("%+v", s.Operators)
	}
	// A chosen folder has a file system before torch makes it.
	t.Setenv("TORCH_EXTENSIONS_DIR", filepath.Join(dir, "later", "on"))
	later, err := startAgent(t.Context(), here{mark: t.Name()}, "python3", req, func(event) {}, &s)
	if err != nil {
		t.Fatal(err)
	}
	defer later.End()
	if o := s.Operators.OK; o == nil || o.Type == "" || len(o.Locks) != 0 {
		t.Errorf("%+v", s.Operators)
	}
}

// A caller without the node's token learns nothing, one with it gets one word, and neither gives an order.
func TestStrangersOfACheck(t *testing.T) {
	m := ready(1).members[0]
	m.token = strings.ToLower(random() + random())[:32]
	req := agentRequest{LimitS: 20, Run: "r", Token: m.token, Master: "127.0.0.1", Data: []string{}, Output: []string{}}
	var err error
	if m.agent, err = startAgent(t.Context(), here{mark: t.Name()}, "python3", req, func(event) {}, &m.survey); err != nil {
		t.Fatal(err)
	}
	defer m.agent.End()
	const payload = 32 << 10
	const order = `{"id": 1, "do": "port"}` + "\n"
	for name, c := range map[string]struct{ sends, gets string }{
		"another token": {strings.Repeat("0", 32) + "\n" + order, "who?"},
		"the token":     {m.token + "\n" + order + strings.Repeat("x", payload-len(order)), "well"},
		"too much":      {strings.Repeat("0", 32), ""},
	} {
		caller, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(m.survey.Port)))
		if err != nil {
			t.Fatal(err)
		}
		defer caller.Close()
		if err := caller.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(caller, c.sends); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if c.gets == "" { // more than a call has: the node hangs up
			_, err := io.CopyN(caller, zeros{}, 64<<20)
			if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: the node does not hang up: %v", name, err)
			}
			continue
		}
		if err := caller.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(caller); err != nil || string(got) != c.gets {
			t.Errorf("%s: the node says %q, %v; want %q", name, got, err, c.gets)
		}
	}
}

// zeros is a file without an end.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }
