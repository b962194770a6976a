//go:build linux

package jobrunner_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/launch"
	"github.com/dsbuild/dsbuild/launch/jobrunner"
)

// program is the program of the ranks: it prints its rank and then does what the test asks.
const program = `
import os, signal, subprocess, sys, time
rank, shared = int(os.environ["RANK"]), sys.argv[1]
print("rank", rank, "begins on", os.environ["HOME"])
print("its folder has the mode %o" % (os.stat(os.path.dirname(os.environ["RANK_LOGS"])).st_mode & 0o777))
print("host:%d NCCL INFO Channel 00" % rank, file=sys.stderr)
sys.stdout.write("10%\r20%\r\x1b[31m100%\n")
how = os.environ.get("RANK_%d" % rank, os.environ.get("OTHERS", ""))
if os.environ.get("ESCAPE"):
    # Leaves its session and its parent, and does not want to end.
    subprocess.Popen(["setsid", "sh", "-c", "trap '' TERM HUP INT; (sleep 1000; :) & sleep 1000; :"])
    time.sleep(0.1)
open(os.path.join(shared, "began-%d" % rank), "w").close()
def wait(name):
    while not os.path.exists(os.path.join(shared, name)):
        time.sleep(0.01)
if how == "fail":
    wait("all")
    print("ValueError: the third sample is empty", file=sys.stderr)
    with open(os.path.join(shared, "failing"), "w") as f:
        f.write(str(os.getpid()))
    os.rename(os.path.join(shared, "failing"), os.path.join(shared, "failed"))
    sys.exit(3)
if how == "kill":
    wait("all")
    os.kill(os.getpid(), signal.SIGKILL)
if how == "follow":
    wait("failed")
    with open(os.path.join(shared, "failed")) as f:
        failed = "/proc/" + f.read()
    while os.path.exists(failed):  # its connections end with it
        time.sleep(0.01)
    print("RuntimeError: Connection closed by peer [127.0.0.1]:1234")
    sys.exit(1)
if how == "stay":
    time.sleep(1000)
print("rank", rank, "is done, given", sys.argv[2:])
`

// fakeJAX replaces JAX: this package's tests do not test how ranks connect.
const fakeJAX = `
class distributed:
    def initialize(**said):
        jax.said = said
def process_count():
    return jax.said["num_processes"]
import sys
jax = sys.modules["jax"]
`

// field is a shared folder with nodes.
type field struct {
	shared  string
	servers []*sshtest.Server
	hosts   []inventory.Host
	mark    string
}

func newField(t *testing.T, nodes int) *field {
	t.Helper()
	f := &field{shared: t.TempDir(), mark: "CREW_TEST=" + t.Name() + strconv.Itoa(os.Getpid())}
	for name, text := range map[string]string{"jax.py": fakeJAX, "train.py": program} {
		if err := os.WriteFile(filepath.Join(f.shared, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for i := range nodes {
		s := sshtest.Start(t, sshtest.Options{Env: []string{f.mark, "TMPDIR=" + t.TempDir()}})
		f.servers = append(f.servers, s)
		f.hosts = append(f.hosts, inventory.Host{Name: fmt.Sprintf("node%d", i+1), Node: fmt.Sprintf("node%d", i+1), Address: s.Address, Python: "python3"})
	}
	t.Cleanup(func() { f.empty(t) })
	return f
}

// job is a job with two processes on each node.
func (f *field) job(t *testing.T, vars ...string) *launch.Job {
	t.Helper()
	var said launch.Settings
	said.Say("procs", "", "2")
	said.Say("gpus", "", "0")
	said.Say("workdir", "", f.shared)
	said.Say("port", "", strconv.Itoa(freePort(t)))
	said.Say("env", "", append(vars, "PYTHONPATH="+f.shared, f.mark)...)
	j, err := launch.New(launch.Request{Kind: launch.JAX, Flags: said, Command: []string{"train.py", f.shared, "a b", "$HOME"}, Hosts: f.hosts})
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// told records the reports.
type told struct {
	ui.Reporter
	mu   sync.Mutex
	said strings.Builder
}

func newTold() *told { return &told{Reporter: ui.New(io.Discard, ui.Options{})} }

func (r *told) Note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(&r.said, format+"\n", args...)
}

func (r *told) Warn(format string, args ...any) { r.Note("warning: "+format, args...) }

// options are the options of a job on all nodes.
func (f *field) options(t *testing.T, j *launch.Job) jobrunner.Options {
	t.Helper()
	files, err := j.Render()
	if err != nil {
		t.Fatal(err)
	}
	parts, err := j.Parts(files)
	if err != nil {
		t.Fatal(err)
	}
	d := remote.NewSSH(remote.Options{Config: remote.NoConfig, AgentSocket: "none", Timeout: time.Minute, KeepAlive: time.Second, KeepAliveMax: 30})
	var machines []jobrunner.Machine
	for i, p := range parts {
		machines = append(machines, jobrunner.Machine{Part: p, Open: func(ctx context.Context) (jobrunner.Conn, error) {
			return d.Dial(ctx, f.servers[i].Target())
		}})
	}
	return jobrunner.Options{Job: j, Machines: machines, Logs: filepath.Join(t.TempDir(), "logs"), Grace: time.Second, Report: newTold()}
}

// began waits until this many ranks have begun, and then lets them go on.
func (f *field) began(t *testing.T, ranks int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if all, err := filepath.Glob(filepath.Join(f.shared, "began-*")); err == nil && len(all) == ranks {
			break
		}
		if time.Now().After(end) {
			t.Errorf("the ranks do not begin")
			break
		}
	}
	if err := os.WriteFile(filepath.Join(f.shared, "all"), nil, 0o644); err != nil {
		t.Error(err)
	}
}

// empty waits until no process of the job is left.
func (f *field) empty(t *testing.T) {
	t.Helper()
	var left []string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if left = f.left(t); len(left) == 0 {
			return
		}
	}
	t.Errorf("left over: %q", left)
}

func (f *field) left(t *testing.T) (all []string) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		words, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err != nil || !slices.Contains(strings.Split(string(words), "\x00"), f.mark) {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil {
			all = append(all, e.Name()+" "+string(line))
		}
	}
	return all
}

func runJob(t *testing.T, opt jobrunner.Options) (*jobrunner.Report, string) {
	t.Helper()
	r, err := jobrunner.Run(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	r.Tell(opt.Report)
	for _, n := range r.Nodes {
		if len(n.Left) > 0 {
			t.Errorf("left on %s: %v", n.Name, n.Left)
		}
	}
	return r, opt.Report.(*told).said.String()
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Each rank has its own log, separate from the libraries' messages about communication, and
// nothing is left on the nodes.
func TestJobPasses(t *testing.T) {
	t.Parallel()
	f := newField(t, 3)
	opt := f.options(t, f.job(t, "ESCAPE=1"))
	go f.began(t, 6)
	r, said := runJob(t, opt)
	if r.State != jobrunner.Passed || r.Err() != nil || len(r.Nodes) != 3 || len(r.Ranks) != 6 || !strings.HasPrefix(said, "job train passed after ") {
		t.Fatalf("%+v\n%s", r, said)
	}
	for i, rank := range r.Ranks {
		text := read(t, rank.Log)
		for _, want := range []string{
			fmt.Sprintf("rank %d begins on %s\n", i, f.servers[i/2].Home), "\n100%\n", "its folder has the mode 700\n",
			fmt.Sprintf("rank %d is done, given ['a b', '$HOME']\n", i), "NCCL INFO",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("rank %d: no %q in\n%s", i, want, text)
			}
		}
		if strings.ContainsAny(text, "\x1b\r") || rank.Node != f.hosts[i/2].Name || rank.Code == nil || *rank.Code != 0 {
			t.Errorf("%+v: %q", rank, text)
		}
		if info, err := os.Stat(rank.Log); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v: %v", err, info.Mode())
		}
	}
	if filepath.Base(r.Ranks[0].Log) != "main.log" || filepath.Base(r.Ranks[5].Log) != "worker-5.log" {
		t.Errorf("the logs are %s and %s", r.Ranks[0].Log, r.Ranks[5].Log)
	}
	talk := read(t, filepath.Join(opt.Logs, "communication.log"))
	if strings.Count(talk, "\n") != 6 || !strings.Contains(talk, "rank 4 on node3: host:4 NCCL INFO Channel 00\n") {
		t.Errorf("of the network: %s", talk)
	}
	for _, s := range f.servers {
		if entries, err := os.ReadDir(s.Home); err != nil || len(entries) != 0 {
			t.Errorf("%v: left there: %v", err, entries)
		}
	}
}

// One rank fails, and all others fail because of it. The report names it first, with its last
// lines.
func TestFirstToFailIsNamed(t *testing.T) {
	t.Parallel()
	f := newField(t, 3)
	go f.began(t, 6)
	r, said := runJob(t, f.options(t, f.job(t, "OTHERS=follow", "RANK_3=fail")))
	if r.State != jobrunner.Failed || r.First == nil || r.First.Rank == nil || *r.First.Rank != 3 || r.First.Node != "node2" {
		t.Fatalf("%+v\n%s", r.First, said)
	}
	first, then := strings.Index(said, "rank 3 on node2 failed first: "), strings.Index(said, "\nthen: ")
	if first != 0 || then < 0 || !strings.Contains(said[:then], "\n    ValueError: the third sample is empty") || strings.Contains(said[:then], "closed by peer") {
		t.Errorf("it says\n%s", said)
	}
	if err := r.Err(); !strings.HasPrefix(err.Error(), "job train failed after ") || !strings.Contains(err.Error(), " on node2 (rank 3, ") {
		t.Error(err)
	}
}

// A killed rank ends all processes, also those that left its session and its parent.
func TestKilledRankEndsAll(t *testing.T) {
	t.Parallel()
	f := newField(t, 2)
	go f.began(t, 4)
	r, said := runJob(t, f.options(t, f.job(t, "ESCAPE=1", "OTHERS=stay", "RANK_2=kill")))
	if r.First == nil || r.First.Rank == nil || *r.First.Rank != 2 || r.Nodes[0].State != "stopped" {
		t.Errorf("%+v\n%s", r, said)
	}
}

// interrupt interrupts a job when its processes have begun. All of them have ended when Run returns.
func (f *field) interrupt(t *testing.T, opt jobrunner.Options, processes int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		f.began(t, processes)
		cancel()
	}()
	r, err := jobrunner.Run(ctx, opt)
	if err != nil || r.State != jobrunner.Interrupted {
		t.Fatalf("%v: %+v", err, r)
	}
	if left := f.left(t); len(left) > 0 {
		t.Errorf("left when it returned: %q", left)
	}
}

func TestInterruptEndsAll(t *testing.T) {
	t.Parallel()
	f := newField(t, 2)
	opt := f.options(t, f.job(t, "ESCAPE=1", "OTHERS=stay"))
	f.interrupt(t, opt, 4)
}

// dsbuild ends a job that runs as another user, by real sudo, like any other.
func TestJobBySudo(t *testing.T) {
	t.Parallel()
	f := newField(t, 1)
	f.servers[0] = sshtest.Start(t, sshtest.Options{Shell: nodestest.SudoShell(t, nodestest.SudoUser+" ALL=(ALL) NOPASSWD: ALL"), Home: "/"})
	opt := f.options(t, f.job(t, "ESCAPE=1", "OTHERS=stay"))
	d := remote.WithSudo(remote.NewSSH(remote.Options{Config: remote.NoConfig, AgentSocket: "none"}), remote.NewAnswers(nil), remote.SudoLimit)
	target := f.servers[0].Target()
	target.Sudo = "root"
	opt.Machines[0].Open = func(ctx context.Context) (jobrunner.Conn, error) { return d.Dial(ctx, target) }
	f.interrupt(t, opt, 2)
}

// The connection to a node breaks, and the server there kills its own processes.
func TestLostNodeEndsAll(t *testing.T) {
	t.Parallel()
	f := newField(t, 2)
	go func() {
		f.began(t, 4)
		f.servers[1].Cut()
	}()
	r, said := runJob(t, f.options(t, f.job(t, "ESCAPE=1", "OTHERS=stay")))
	if r.State != jobrunner.Failed || r.First == nil || r.First.Node != "node2" || r.First.Rank != nil || !strings.Contains(said, "lost connection to node2") {
		t.Errorf("%+v\n%s", r, said)
	}
}

// dsbuild finds a node on which the job cannot run before it starts anything.
func TestNothingBeginsWhereSomethingIsMissing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil func(t *testing.T, f *field, j *launch.Job)
		why   string
	}{
		"script": {func(t *testing.T, f *field, j *launch.Job) {
			if err := os.Remove(filepath.Join(f.shared, "train.py")); err != nil {
				t.Fatal(err)
			}
		}, "file not found: "},
		"folder": {func(_ *testing.T, _ *field, j *launch.Job) { j.WorkDir = "/nowhere/at all" }, "directory not found: /nowhere/at all"},
		"python": {func(_ *testing.T, _ *field, j *launch.Job) { j.Hosts[1].Python = "/nowhere/python" }, "Python not found: /nowhere/python"},
		"GPUs": {func(t *testing.T, _ *field, j *launch.Job) {
			if others, _ := filepath.Glob("/dev/dri/renderD*"); len(others) > 0 {
				t.Skip("a graphics device may be one that the job can use")
			}
			j.GPUs, j.GPUsKnown, j.JAXPlatforms = 1000, true, "cuda"
		}, "the job uses 1000 GPUs, but "},
		"port": {func(t *testing.T, _ *field, j *launch.Job) {
			l, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(j.Port)))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
		}, "is in use; "},
		"node": {func(_ *testing.T, f *field, _ *launch.Job) { f.servers[1].Stop() }, "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newField(t, 2)
			j := f.job(t)
			c.spoil(t, f, j)
			r, said := runJob(t, f.options(t, j))
			if r.State != jobrunner.NotStarted || r.First == nil || !strings.Contains(r.First.Why, c.why) || fault.Hint(r.Err()) == "" {
				t.Errorf("%+v\n%s\n%v", r, said, r.Err())
			}
			if began, err := filepath.Glob(filepath.Join(f.shared, "began-*")); err != nil || len(began) > 0 {
				t.Errorf("%v: it began: %q", err, began)
			}
		})
	}
}

// This machine is a node like any other.
func TestJobOnThisMachine(t *testing.T) {
	t.Parallel()
	f := newField(t, 0)
	var said launch.Settings
	for key, value := range map[string]string{"procs": "2", "gpus": "0", "workdir": f.shared, "jax-form": "manual", "python": "python3", "port": strconv.Itoa(freePort(t))} {
		said.Say(key, "", value)
	}
	said.Say("env", "", "PYTHONPATH="+f.shared, f.mark, "SECRET_TOKEN")
	j, err := launch.New(launch.Request{Kind: launch.JAX, Flags: said, Command: []string{"train.py", f.shared}})
	if err != nil {
		t.Fatal(err)
	}
	files, err := j.Render()
	if err != nil {
		t.Fatal(err)
	}
	parts, err := j.Parts(files)
	if err != nil {
		t.Fatal(err)
	}
	r, text := runJob(t, jobrunner.Options{
		Job: j, Machines: []jobrunner.Machine{{Part: parts[0], Open: jobrunner.OpenLocal}}, Env: map[string]string{"SECRET_TOKEN": "x"},
		Logs: t.TempDir(), Grace: time.Second, Report: newTold(),
	})
	if r.State != jobrunner.Passed || len(r.Ranks) != 2 {
		t.Errorf("%+v\n%s", r, text)
	}
}

// dsbuild does not trust a node's messages: ranks of other nodes, control characters, lines
// without an end, nonsense.
func TestHostileNode(t *testing.T) {
	t.Parallel()
	f := newField(t, 1)
	f.servers[0] = sshtest.Start(t, sshtest.Options{Exec: func(_ string, stdin io.Reader, stdout, _ io.Writer) int {
		mark := markOf(t, stdin)
		fmt.Fprintf(stdout, "welcome\n[1, 2]\n{\"end\": {\"code\": 1}}\n%s\n", strings.Repeat("x", 3<<20))
		for _, message := range []string{
			`{"to": 0, "ok": null}`, `{"rank": {"number": 0, "local": 0, "begun": true}}`, `{"rank": {"number": 99999999, "local": -4, "begun": true}}`,
			`{"rank": {"number": -1, "status": 9}}`, `{"out": {}}`, `{}`, `{"surprise": [[]]}`,
			`{"out": {"key": "0", "kind": "out", "text": "\u001b]0;owned\u0007fine\nand \u202e more\n"}}`, `{"out": {"key": "1234567", "kind": "out", "text": "a\n"}}`,
			`{"out": {"key": "local:../../../../x", "kind": "out", "text": "a\n"}}`, `{"out": {"key": "0", "kind": "` + strings.Repeat("s", 1000) + `", "text": "no end"}}`,
			`{"out": {"key": "launcher", "kind": "out", "text": "failed (exitcode: 99999999999999999999) local_rank: 0 x\n"}}`,
			`{"end": {"code": 0, "signal": 0, "left": [], "reason": "\u001b[2J"}}`,
		} {
			fmt.Fprintln(stdout, mark+message)
		}
		return 0
	}})
	opt := f.options(t, f.job(t))
	r, _ := runJob(t, opt)
	if text := read(t, r.Ranks[0].Log); text != "fine\nand  more\nno end\n" {
		t.Errorf("%q", text)
	}
	outside, err := filepath.Glob(filepath.Join(filepath.Dir(opt.Logs), "*"))
	if err != nil || len(outside) != 1 {
		t.Errorf("%v: %q", err, outside)
	}
	for i, n := range r.Nodes {
		if strings.Contains(n.Why, "\x1b") {
			t.Errorf("%d: %q", i, n.Why)
		}
	}
}

// dsbuild gives up a node with invalid messages, and reports the reason.
func TestNonsenseEndsTheSession(t *testing.T) {
	t.Parallel()
	for _, nonsense := range []string{`{"rank": {"number": "x"}}`, `{"end": 3}`, `[]`, `{"to": 7, "ok": 1}`, `no JSON`} {
		f := newField(t, 1)
		f.servers[0] = sshtest.Start(t, sshtest.Options{Exec: func(_ string, stdin io.Reader, stdout, _ io.Writer) int {
			mark := markOf(t, stdin)
			fmt.Fprintf(stdout, "%s{\"to\": 0, \"ok\": null}\n%s%s\n", mark, mark, nonsense)
			io.Copy(io.Discard, stdin) //nolint:errcheck // until dsbuild ends the program
			return 0
		}})
		r, _ := runJob(t, f.options(t, f.job(t)))
		if r.State == jobrunner.Passed || r.First == nil || !strings.HasPrefix(r.First.Why, "agent on the node exited: ") {
			t.Errorf("%s: %+v", nonsense, r.First)
		}
	}
}

// markOf reads the mark of messages from the beginning of a program.
func markOf(t *testing.T, program io.Reader) string {
	t.Helper()
	var told struct{ Mark string }
	_, err := io.CopyN(io.Discard, program, int64(len(remote.EndShell)))
	if err := errors.Join(err, json.NewDecoder(program).Decode(&told)); err != nil {
		t.Error(err)
	}
	return told.Mark
}

// A node ends the job's processes when dsbuild falls silent, although the connection is still
// open.
func TestSilenceEndsAll(t *testing.T) {
	t.Parallel()
	f := newField(t, 1)
	opt := f.options(t, f.job(t, "ESCAPE=1", "OTHERS=stay"))
	opt.HeartbeatTimeout = 5 * time.Second
	// The input to the node stops after the order "go".
	open := opt.Machines[0].Open
	opt.Machines[0].Open = func(ctx context.Context) (jobrunner.Conn, error) {
		link, err := open(ctx)
		return quiet{link}, err
	}
	r, said := runJob(t, opt)
	if r.State != jobrunner.Failed || r.First == nil || !strings.Contains(r.First.Why, "no heartbeat from dsbuild for ") {
		t.Errorf("%+v\n%s", r, said)
	}
}

// quiet is a link that passes nothing on after "go".
type quiet struct{ jobrunner.Conn }

// Run implements remote.Runner.
func (q quiet) Run(ctx context.Context, cmd remote.Command) error {
	cmd.Stdin = &until{from: cmd.Stdin, ctx: ctx}
	return q.Conn.Run(ctx, cmd)
}

type until struct {
	from io.Reader
	ctx  context.Context
	over bool
}

// Read implements io.Reader.
func (u *until) Read(b []byte) (int, error) {
	if u.over {
		<-u.ctx.Done()
		return 0, io.EOF
	}
	n, err := u.from.Read(b)
	u.over = strings.Contains(string(b[:n]), `"do":"go"`)
	return n, err
}

// Whichever of the two processes of dsbuild's program is killed, no process stays.
func TestSupervisorKilled(t *testing.T) {
	t.Parallel()
	for _, inner := range []bool{true, false} {
		t.Run(fmt.Sprint(inner), func(t *testing.T) {
			t.Parallel()
			f := newField(t, 1)
			go func() {
				f.began(t, 2)
				f.strike(t, inner)
			}()
			r, said := runJob(t, f.options(t, f.job(t, "ESCAPE=1", "OTHERS=stay")))
			if r.State != jobrunner.Failed || r.First == nil || r.First.Node != "node1" {
				t.Errorf("%+v\n%s", r, said)
			}
		})
	}
}

// strike kills one of the two. The inner one leads a session and is a child of the other.
func (f *field) strike(t *testing.T, inner bool) {
	for _, line := range f.left(t) {
		pid, words, _ := strings.Cut(line, " ")
		if !strings.Contains(words, "\x00-I\x00-c\x00") {
			continue
		}
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil {
			continue
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		parent, err := os.ReadFile("/proc/" + fields[1] + "/cmdline")
		if err == nil && strings.Contains(string(parent), "\x00-I\x00-c\x00") == inner && (!inner || fields[3] == pid) {
			n, err := strconv.Atoi(pid)
			if err != nil {
				t.Error(err)
			}
			if err := syscall.Kill(n, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
			return
		}
	}
	t.Error("it was not found")
}

// The files, words and values of a job come by standard input: everybody on a node sees command lines.
func TestNothingOfAJobIsInACommandLine(t *testing.T) {
	t.Parallel()
	f := newField(t, 1)
	lines, input := "", ""
	f.servers[0] = sshtest.Start(t, sshtest.Options{Exec: func(line string, stdin io.Reader, _, _ io.Writer) int {
		text, _ := io.ReadAll(io.LimitReader(stdin, 100)) //nolint:errcheck // the program ends before its input does
		lines, input = lines+line, input+string(text)
		return 1
	}})
	runJob(t, f.options(t, f.job(t, "WHAT=the-value")))
	for _, word := range []string{"the-value", "WHAT", "train.py", f.shared, f.mark} {
		if strings.Contains(lines, word) {
			t.Errorf("a command line has %s:\n%s", word, lines)
		}
	}
	if lines == "" || input == "" {
		t.Errorf("lines %q, input %q", lines, input)
	}
}
