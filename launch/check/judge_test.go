package check

import (
	"crypto/rand"
	"fmt"
	"io"
	dice "math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
)

func random() string { return rand.Text() }

// freePort returns a port below the range from which the system chooses ports, also for the
// agents of this test.
func freePort(t *testing.T) int {
	t.Helper()
	for range 100 {
		port := 10000 + dice.IntN(20000)
		if door, err := net.ListenTCP("tcp4", &net.TCPAddr{Port: port}); err == nil {
			door.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}

func listen(t *testing.T, port int) net.Listener {
	t.Helper()
	door, err := net.ListenTCP("tcp4", &net.TCPAddr{Port: port})
	if err != nil {
		t.Fatal(err)
	}
	return door
}

func known[T any](value T) part[T] { return part[T]{OK: &value} }

// ready are nodes without faults; n1 is the master.
func ready(n int) *run {
	r := &run{fleet: fleet.New(fleet.Options{}), opt: Options{Options: fleet.Options{Reporter: ui.New(io.Discard, ui.Options{})}, Port: 29500}}
	for i := range n {
		name := fmt.Sprintf("n%d", i+1)
		address := fmt.Sprintf("10.0.0.%d", i+1)
		m := &member{
			Node: &fleet.Node{Host: inventory.Host{Name: name, Node: name, Address: name}, Status: report.OK}, run: r, index: i, agent: &agent.Session{},
			facts: &node.Facts{Python: "3.11.2", Torch: "2.15.0"}, route: &routed{"eth0", address},
		}
		m.survey = survey{
			Host: known(resolved{name, []string{address}, ""}), Master: known(resolved{"n1", []string{"10.0.0.1"}, ""}),
			Interfaces: known([]nic{{"lo", "127.0.0.1"}, {"eth0", address}, {"docker0", "172.17.0.1"}}),
			Variables:  known(map[string]string{}), Port: 4000,
		}
		r.members = append(r.members, m)
	}
	return r
}

func (r *run) said() string {
	var lines []string
	for _, m := range r.members {
		for _, f := range m.findings {
			lines = append(lines, m.Host.Name+" "+string(f.Level)+": "+f.Text)
		}
	}
	return strings.Join(lines, "\n")
}

func TestJudgements(t *testing.T) {
	set := func(m *member, name, value string) { (*m.survey.Variables.OK)[name] = value }
	for _, c := range []struct {
		name  string
		wrong func(r *run)
		judge func(r *run)
		want  string
	}{
		{"nothing", func(*run) {}, func(r *run) {
			r.checkVersions(t.Context())
			r.checkVariables(t.Context())
			r.checkNames(t.Context())
			r.judgeInterfaces()
			r.checkDisks(t.Context())
		}, ""},
		{"the master is loopback on one", func(r *run) {
			r.members[2].survey.Master = known(resolved{"n1", []string{"127.0.1.1"}, ""})
		}, func(r *run) { r.checkNames(t.Context()) }, "n3 error: the master's address n1 resolves to 127.0.1.1, which is the node itself"},
		{"the master is another's address", func(r *run) {
			r.members[1].survey.Master = known(resolved{"n1", []string{"10.9.9.9"}, ""})
		}, func(r *run) { r.checkNames(t.Context()) }, "n2 error: the master's address n1 resolves to 10.9.9.9 on this node, but n1 has 10.0.0.1, 172.17.0.1"},
		{"no name server", func(r *run) {
			r.members[1].survey.Master = part[resolved]{Hung: true}
		}, func(r *run) { r.checkNames(t.Context()) }, "n2 error: cannot resolve the master's address n1: timed out after 20s"},
		{"null", func(r *run) {
			r.members[1].survey.Master = part[resolved]{}
		}, func(r *run) { r.checkNames(t.Context()) }, "n2 error: cannot resolve the master's address n1: no answer"},
		{"no address", func(r *run) {
			r.members = r.members[:1]
			r.members[0].survey.Master = known(resolved{"n1", nil, ""})
		}, func(r *run) { r.checkNames(t.Context()) }, "n1 error: cannot resolve the master's address n1: no address"},
		{"the own name is loopback", func(r *run) {
			r.members[1].survey.Host = known(resolved{"n2", []string{"127.0.1.1"}, ""})
			r.members[2].survey.Host = known(resolved{"n3", []string{"127.0.1.1"}, ""})
			set(r.members[2], "GLOO_SOCKET_IFNAME", "eth0")
		}, func(r *run) { r.checkNames(t.Context()) }, "n2 error: own name n2 resolves to 127.0.1.1, the address that Gloo would announce to the other nodes"},
		{
			"another torch", func(r *run) { r.members[3].facts.Torch = "2.14.0" }, func(r *run) { r.checkVersions(t.Context()) },
			"n4 error: torch 2.14.0, but 3 of 4 nodes have 2.15.0",
		},
		{"another driver", func(r *run) {
			for i, m := range r.members {
				m.facts.Driver = []string{"580.1", "580.1", "575.2", "580.1"}[i]
			}
		}, func(r *run) { r.checkVersions(t.Context()) }, "n3 warning: driver 575.2, but 3 of 4 nodes have 580.1"},
		{"variables", func(r *run) {
			for _, m := range r.members {
				set(m, "NCCL_ALGO", "Ring")
			}
			set(r.members[0], "NCCL_ALGO", "Tree")
			set(r.members[1], "MASTER_ADDR", "10.0.0.1")
			set(r.members[3], "MASTER_ADDR", "localhost")
			set(r.members[2], "CUDA_VISIBLE_DEVICES", "")
		}, func(r *run) { r.checkVariables(t.Context()) }, strings.Join([]string{
			"n1 error: NCCL_ALGO=Tree, but 3 of 4 nodes have Ring",
			"n2 warning: MASTER_ADDR=10.0.0.1, but not set on 2 of 4 nodes",
			"n3 error: CUDA_VISIBLE_DEVICES=: all GPUs are hidden",
			"n3 warning: CUDA_VISIBLE_DEVICES=, but not set on 3 of 4 nodes",
			"n4 error: MASTER_ADDR=localhost: every node would be its own master",
			"n4 warning: MASTER_ADDR=localhost, but not set on 2 of 4 nodes",
		}, "\n")},
		{"interfaces", func(r *run) {
			r.members[1].route = &routed{"docker0", "172.17.0.1"}
			r.members[2].route.Interface = "ens5"
			set(r.members[3], "NCCL_SOCKET_IFNAME", "ib")
		}, func(r *run) { r.judgeInterfaces() }, strings.Join([]string{
			"n2 error: reaches the master through docker0 (172.17.0.1), which does not lead to other nodes",
			"n3 warning: reaches the master through ens5, but 2 of 4 nodes through eth0",
			"n4 error: NCCL_SOCKET_IFNAME=ib is not an interface of this node with an address",
		}, "\n")},
		{"an interface that was said", func(r *run) {
			set(r.members[1], "GLOO_SOCKET_IFNAME", "lo")
			set(r.members[2], "NCCL_SOCKET_IFNAME", "^docker,lo")
			set(r.members[3], "NCCL_SOCKET_IFNAME", "=eth")
		}, func(r *run) { r.judgeInterfaces() }, strings.Join([]string{
			"n2 error: GLOO_SOCKET_IFNAME=lo does not lead to other nodes",
			"n4 error: NCCL_SOCKET_IFNAME==eth is not an interface of this node with an address",
		}, "\n")},
		{"disks", func(r *run) {
			r.opt.MinFree = 1 << 30
			r.members[0].survey.Disks = map[string]part[room]{"/dev/shm": known(room{Path: "/dev/shm", Free: 64 << 20, Inodes: -1})}
			r.members[1].survey.Disks = map[string]part[room]{"TMPDIR": known(room{Path: "/tmp", Free: 1 << 40, Inodes: 3})}
			r.members[2].survey.Disks = map[string]part[room]{"TMPDIR": known(room{Path: "/tmp", Free: 1 << 40, Inodes: -1, Unwritable: "Read-only file system"})}
			r.members[3].survey.Disks = map[string]part[room]{"environment": {Hung: true}}
		}, func(r *run) { r.checkDisks(t.Context()) }, strings.Join([]string{
			"n1 error: /dev/shm has 64.0 MiB free, less than 1.0 GiB",
			"n2 error: TMPDIR (/tmp) has inodes for only 3 more files",
			"n3 error: TMPDIR (/tmp): not writable: Read-only file system",
			"n4 error: environment: timed out after 20s",
		}, "\n")},
		{"data", func(r *run) {
			r.opt.Data = []string{"/data"}
			for i, m := range r.members {
				m.survey.Data = map[string]part[dataset]{"/data": known(dataset{"/data", 2, 2048, []string{"a", "a", "b", "a"}[i]})}
			}
			r.members[1].survey.Data["/data"] = known(dataset{"/data", 0, 0, "c"})
		}, func(r *run) { r.checkPaths(t.Context()) }, "n2 error: --data /data is empty\nn3 error: --data /data: 2 items, 2.0 KiB, but 2 of 4 nodes have 2 items, 2.0 KiB with different names or sizes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := ready(4)
			c.wrong(r)
			c.judge(r)
			if got := r.said(); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

func TestJudgeCalls(t *testing.T) {
	for _, c := range []struct {
		name   string
		failed map[int][]int
		want   string
	}{
		{"all", nil, ""},
		{"a pair", map[int][]int{1: {3}, 3: {1}}, "n2 error: cannot reach n4 at 10.0.0.4: node reported: no answer\nn4 error: cannot reach n2 at 10.0.0.2: node reported: no answer"},
		{"one way", map[int][]int{0: {2}}, "n1 error: cannot reach n3 at 10.0.0.3: node reported: no answer"},
		{"nobody reaches n4", map[int][]int{0: {3}, 1: {3}, 2: {3}}, "n4 error: no other node can reach it at 10.0.0.4: no answer"},
		{"n1 reaches nobody", map[int][]int{0: {1, 2, 3}}, "n1 error: cannot reach any other node: node reported: no answer"},
		{"two halves", map[int][]int{0: {2, 3}, 1: {2, 3}, 2: {0, 1}, 3: {0, 1}}, strings.Join([]string{
			"n1 error: cannot reach n[3-4]: node reported: no answer", "n2 error: cannot reach n[3-4]: node reported: no answer",
			"n3 error: cannot reach n[1-2]: node reported: no answer", "n4 error: cannot reach n[1-2]: node reported: no answer",
		}, "\n")},
		{"a word about one node, again and again, and about none", map[int][]int{0: {3, 3, 3, 17, 0}}, "n1 error: cannot reach n4 at 10.0.0.4: node reported: no answer"},
		{"the master's port alone", map[int][]int{2: {masterPort}}, "n3 error: reaches the master n1, but not its port 29500: node reported: no answer"},
	} {
		r := ready(4)
		got := make([]dialled, 4)
		for from, to := range c.failed {
			for _, at := range to {
				got[from].Failed = append(got[from].Failed, failedCall{at, "no answer"})
			}
		}
		r.judgeCalls(r.members, r.members, got)
		if said := r.said(); said != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", c.name, said, c.want)
		}
	}
}

// Each node calls every other one, beginning with its successor.
func TestCalls(t *testing.T) {
	r := ready(3)
	order := func(m *member) (at []int) {
		for _, c := range r.listCalls(m, r.members, true) {
			at = append(at, c[0].(int))
		}
		return at
	}
	for i, want := range [][]int{{1, 2}, {2, 0, masterPort}, {0, masterPort, 1}} {
		if got := order(r.members[i]); !slices.Equal(got, want) {
			t.Errorf("%d: %v, want %v", i, got, want)
		}
	}
}

func TestDevices(t *testing.T) {
	r := ready(4)
	say := func(lines ...string) part[programOutput] { return known(programOutput{0, lines}) }
	for _, m := range r.members {
		m.facts.GPUs = slices.Repeat([]node.GPU{{Name: "NVIDIA A100", Arch: "8.0"}}, 8)
		m.survey.Devices = map[string]part[programOutput]{
			"gpus": say("0, GPU-1"), "ecc": say("0, 0", "1, [N/A]"), "retired": say("0, [N/A]", "1, No"), "xid": say(),
			"remapped": say("00000000:07:00.0, 0, 0", "00000000:0F:00.0, No, No"), "slowdown": say("0, Not Active"), "busy": say(),
		}
	}
	r.members[1].facts.GPUs = r.members[1].facts.GPUs[:7]
	r.members[2].survey.Devices = map[string]part[programOutput]{
		"gpus": say("0, GPU-1"), "ecc": say("0, 0", "5, 12"), "retired": say("3, Yes"),
		"remapped": say("00000000:07:00.0, 1, 0", "00000000:0F:00.0, No, Yes"), "slowdown": say("2, Active"), "busy": say("GPU-1, 4711, python3"),
		"xid": say("[1] NVRM: Xid (PCI:0000:0f:00): 79, pid=1, GPU has fallen off the bus.", "[2] NVRM: Xid (PCI:0000:07:00): 31, pid=7", "[3] NVRM: Xid (PCI:0000:0f:00): 79, pid=1"),
	}
	r.members[3].survey.Devices["gpus"] = known(programOutput{9, []string{"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."}})
	counts := groupByValue(r.members, func(m *member) (string, bool) { return []string{"7", "8"}[len(m.facts.GPUs)-7], true })
	for _, m := range r.members {
		m.countDevices(counts, 4)
		m.checkHealth()
	}
	want := strings.Join([]string{
		"n2 error: 7 GPUs, but 3 of 4 nodes have 8",
		"n3 error: GPU 5: 12 uncorrectable ECC errors since the driver was loaded",
		"n3 error: GPU 3: memory pages pending retirement",
		"n3 error: GPU 00000000:07:00.0: memory rows pending remapping",
		"n3 error: GPU 00000000:0f:00.0: memory row remapping failed",
		"n3 error: GPU 2: slowed down by the hardware",
		"n3 warning: GPUs in use by pid 4711 (python3)",
		"n3 error: GPU 0000:0f:00: XID 79, 2 times since boot",
		"n3 warning: GPU 0000:07:00: XID 31, once since boot",
		"n4 error: nvidia-smi: NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
	}, "\n")
	if got := r.said(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	r = ready(2)
	r.members[0].Host.Slots, r.members[1].Host.Slots = 2, 2
	r.members[0].facts.GPUs = []node.GPU{{}, {}}
	(*r.members[0].survey.Variables.OK)["CUDA_VISIBLE_DEVICES"] = "0,-1,1"
	for _, m := range r.members {
		m.countDevices(nil, 2)
	}
	if got := r.said(); got != "n1 error: CUDA_VISIBLE_DEVICES leaves 1 GPU to jobs\nn2 error: no GPU, but slots is 2 in the inventory" {
		t.Error(got)
	}
}

// team is a collective of three nodes, each with one process that has imported torch.
func team() *teamwork {
	r := ready(3)
	r.events = newEventQueue()
	w := &teamwork{run: r, team: r.members, world: 3, owner: r.members, reached: make([]int, 3), failed: make([]string, 3)}
	for rank := range 3 {
		w.handleEvent(event{from: w.team[rank], Rank: rank, Stage: "imported"})
	}
	return w
}

// The events of all processes of a large check wait until somebody reads them, whatever one node sends.
func TestEventsOfManyNodes(t *testing.T) {
	r := ready(3000)
	r.events = newEventQueue()
	for range 100000 { // a node that lies
		r.events.add(event{from: r.members[0], Rank: 0, Stage: "met"})
	}
	for range 6 {
		for i, m := range r.members[1:] {
			r.events.add(event{from: m, Rank: i + 1, Stage: "met"})
		}
	}
	of := map[*member]int{}
	for _, e := range r.events.take() {
		of[e.from]++
	}
	if of[r.members[0]] > 2000 {
		t.Errorf("%d events of one node are kept", of[r.members[0]])
	}
	for _, m := range r.members[1:] {
		if of[m] != 6 {
			t.Fatalf("%d of 6 events of %s are kept", of[m], m.Host.Name)
		}
	}
}

// The test finds the node that holds up a collective from the nodes that wait for it.
func TestBlame(t *testing.T) {
	stage := stages(false, false)[1]
	t.Run("one does not come as far", func(t *testing.T) {
		w := team()
		w.handleEvent(event{from: w.team[0], Rank: 0, Stage: "met"})
		w.handleEvent(event{from: w.team[2], Rank: 2, Stage: "met"})
		err := w.findCulprits(2, stage, time.Minute)
		if got := w.said(); got != "n2 error: cannot reach the master's port within 1m00s" || err.Error() != "waiting for n2" {
			t.Errorf("%v\n%s", err, got)
		}
	})
	t.Run("the first that fails", func(t *testing.T) {
		w := team()
		w.handleEvent(event{from: w.team[0], Rank: 0, Stage: "met"})
		w.handleEvent(event{from: w.team[0], Rank: 0, Stage: "failed", Error: "connection closed by peer"})
		w.handleEvent(event{from: w.team[0], Rank: 2, Stage: "failed", Error: "a word about another node"})
		w.handleEvent(event{from: w.team[1], Rank: 1, Stage: "failed", Error: "no module"})
		w.handleEvent(event{from: w.team[2], Rank: 99, Stage: "failed"})
		w.handleEvent(event{from: w.team[2], Rank: -1, Stage: "met"})
		err := w.findCulprits(2, stage, 0)
		if got := w.said(); got != "n2 error: cannot reach the master's port: node reported: no module" || err.Error() != "waiting for n2" {
			t.Errorf("%v\n%s", err, got)
		}
	})
	t.Run("all", func(t *testing.T) {
		w := team()
		err := w.findCulprits(2, stage, time.Minute)
		if err.Error() != "every node: cannot reach the master's port" || strings.Count(w.said(), "\n") != 2 {
			t.Errorf("%v\n%s", err, w.said())
		}
	})
}
