package check

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// checkVersions compares the software of the nodes.
func (r *run) checkVersions(context.Context) {
	var known []*member
	var facts []node.Facts
	for _, m := range r.liveMembers() {
		known, facts = append(known, m), append(facts, *m.facts)
		if r.opt.Here && !r.opt.JAX && m.Host.Python != "" && m.facts.Torch == "" {
			m.addFinding(Versions, Error, "use the interpreter of the jobs: --python; for jobs without torch: --skip versions", "torch is not installed for %s", m.Host.Python)
		}
	}
	names := lists.Map(known, func(m *member) string { return m.Host.Name })
	for i, deviations := range node.Deviations(facts, node.Properties(), slices.Repeat([]bool{true}, len(facts))) {
		for _, d := range deviations {
			known[i].addFinding(Versions, Error, "", "%s", d.Describe(names))
			known[i].setHint("make the environments the same; for DeepSpeed, run: " + fault.Deploy().String())
		}
	}
	for _, d := range node.Compare(facts, node.Properties()) {
		if d.Must || slices.Contains([]string{"wheel", "gpus"}, d.What) { // devices are counted by themselves
			continue
		}
		for _, v := range d.Values[1:] {
			for _, at := range v.Nodes {
				known[at].addFinding(Versions, Warning, "", "%s %s, but %d of %s have %s",
					node.Title(d.What), cmp.Or(v.Value, "none"),
					len(d.Values[0].Nodes), ui.Count(len(facts), "node"), cmp.Or(d.Values[0].Value, "none"))
			}
		}
	}
}

// foldNames folds names to a limited length.
func foldNames(names []string) string {
	folded, whole := ui.FoldWithin(names, 160)
	if whole {
		return folded
	}
	return strings.TrimSpace(fmt.Sprintf("%s (%s)", folded, ui.Count(len(names), "node")))
}

// checkVariables finds wrong values of variables, and differences between nodes.
func (r *run) checkVariables(context.Context) {
	live := r.liveMembers()
	names := map[string]bool{}
	for _, m := range live {
		if why := m.survey.Variables.failureReason(); why != "" {
			m.addFinding(Variables, Error, "", "cannot read environment variables: %s", why)
			continue
		}
		value := m.variable("MASTER_ADDR")
		if value != "" && value != "localhost" && !isLoopback(value) &&
			value != r.masterAddress() && !slices.Contains(r.firstMember().reachableAddresses(), value) {
			m.addFinding(Variables, Warning, unsetHint, "MASTER_ADDR=%s is not the first node, %s", value, r.masterAddress())
		}
		for _, name := range slices.Sorted(maps.Keys(*m.survey.Variables.OK)) {
			value := (*m.survey.Variables.OK)[name]
			names[name] = true
			for _, rule := range variableRules() {
				if rule.name == name && rule.bad(value) {
					m.addFinding(Variables, rule.level, rule.try, "%s=%s: %s", name, value, rule.why)
				}
			}
		}
	}
	// The prefixes of variables that may differ between nodes.
	mayDiffer := []string{
		"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_HOSTID", "UCX_NET_DEVICES", "FI_", "NVIDIA_",
		"NODE_RANK", "RANK", "GROUP_RANK", "LOCAL_RANK",
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !slices.ContainsFunc(mayDiffer, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			compareVariable(live, name)
		}
	}
	compareNCCLFiles(live)
}

// compareNCCLFiles finds NCCL's configuration files, which apply to every job, and nodes where they differ.
func compareNCCLFiles(live []*member) {
	values := groupByValue(live, func(m *member) (string, bool) {
		if m.survey.NCCLFiles.OK == nil {
			return "", false
		}
		var lines []string
		for _, s := range *m.survey.NCCLFiles.OK {
			lines = append(lines, s.path+" sets "+s.line)
		}
		return ui.Shorten(strings.Join(lines, ", "), 400), true
	})
	for i, v := range values {
		for _, m := range v.members {
			if i > 0 {
				m.addFinding(Variables, Error, "make NCCL's configuration files the same on all nodes, or remove them",
					"%s, but %s: %s", cmp.Or(v.value, "no configuration file of NCCL"),
					values[0].of(len(live)), cmp.Or(values[0].value, "none"))
			} else if v.value != "" {
				m.addFinding(Variables, Warning, "remove what is left from earlier experiments", "%s, for every job", v.value)
			}
		}
	}
}

// compareVariable finds the nodes whose value differs from most others'.
func compareVariable(live []*member, name string) {
	values := groupByValue(live, func(m *member) (string, bool) {
		if m.survey.Variables.OK == nil {
			return "", false
		}
		value, set := (*m.survey.Variables.OK)[name]
		if !set {
			return "not set", true
		}
		return name + "=" + value, true
	})
	if len(values) < 2 {
		return
	}
	level := Warning
	if strings.HasPrefix(name, "NCCL_") || name == "PYTHONPATH" {
		level = Error // other algorithms, other code
	}
	most := values[0]
	norm := fmt.Sprintf("but %s have %s", most.of(len(live)), strings.TrimPrefix(most.value, name+"="))
	if most.value == "not set" {
		norm = "but not set on " + most.of(len(live))
	}
	for _, v := range values[1:] {
		for _, m := range v.members {
			is := v.value
			if !strings.Contains(is, "=") {
				is = name + " is not set"
			}
			m.addFinding(Variables, level, "set the same value on all nodes, with env: in the inventory or in the user's profile",
				"%s, %s", is, norm)
		}
	}
}

// rule describes a wrong value of a variable.
type rule struct {
	name     string
	bad      func(value string) bool
	level    Level
	why, try string
}

func isOneOf(values ...string) func(string) bool {
	return func(v string) bool { return slices.Contains(values, strings.ToLower(v)) }
}

const unsetHint = "remove it from the profile on the node; the launcher sets it"

// variableRules are the known wrong values.
func variableRules() []rule {
	anything := func(string) bool { return true }
	return []rule{
		{"MASTER_ADDR", func(v string) bool { return v == "localhost" || isLoopback(v) }, Error, "every node would be its own master", unsetHint},
		{"RANK", anything, Warning, "leftover value: the launcher sets it for each process", unsetHint},
		{"LOCAL_RANK", anything, Warning, "leftover value: the launcher sets it for each process", unsetHint},
		{"GROUP_RANK", anything, Warning, "leftover value: the launcher sets it for each node", unsetHint},
		{"NODE_RANK", anything, Warning, "leftover value: the launcher sets a different value on each node", unsetHint},
		{"WORLD_SIZE", anything, Warning, "leftover value: the launcher counts the processes", unsetHint},
		{"GLOO_SOCKET_IFNAME", func(v string) bool { return strings.ContainsAny(v, "^=") }, Error, "Gloo accepts only interface names, without ^ and =", "set an interface name: GLOO_SOCKET_IFNAME=eth0"},
		{"CUDA_VISIBLE_DEVICES", isOneOf("", "-1", "nodevfiles"), Error, "all GPUs are hidden", "remove it from the profile on the node"},
		{"NCCL_P2P_DISABLE", isOneOf("1"), Warning, "GPUs of a node cannot communicate directly", "remove it, unless it is a workaround"},
		{"NCCL_SHM_DISABLE", isOneOf("1"), Warning, "processes of a node communicate over the network", "remove it, unless it is a workaround"},
		{"NCCL_IB_DISABLE", isOneOf("1"), Warning, "jobs do not use InfiniBand and RoCE", "remove it if the node has such a network"},
		{"NCCL_DEBUG", isOneOf("info", "trace"), Warning, "every process writes a lot of output", "set NCCL_DEBUG=WARN"},
		{"CUDA_LAUNCH_BLOCKING", isOneOf("1"), Warning, "the CPU waits for every kernel: use it only for debugging", "remove it"},
		{"TORCH_DISTRIBUTED_DEBUG", isOneOf("detail"), Warning, "torch checks every collective: use it only for debugging", "remove it"},
		{"NCCL_ASYNC_ERROR_HANDLING", anything, Warning, "renamed to TORCH_NCCL_ASYNC_ERROR_HANDLING in torch 2.2", "rename it"},
		{"PYTHONHOME", anything, Warning, "environments may load another Python's libraries", "remove it"},
		{"LD_PRELOAD", func(v string) bool { return v != "" }, Warning, "affects every program", "remove it, unless you need it"},
	}
}

// valued are the nodes that share a value.
type valued struct {
	value   string
	members []*member
}

// of returns how many of a number of nodes share the value.
func (v valued) of(nodes int) string {
	return fmt.Sprintf("%d of %s", len(v.members), ui.Count(nodes, "node"))
}

// groupByValue groups the nodes by their known values, the largest group first.
func groupByValue(members []*member, of func(*member) (string, bool)) []valued {
	var all []valued
	for _, m := range members {
		value, known := of(m)
		if !known {
			continue
		}
		at := slices.IndexFunc(all, func(v valued) bool { return v.value == value })
		if at < 0 {
			at, all = len(all), append(all, valued{value: value})
		}
		all[at].members = append(all[at].members, m)
	}
	slices.SortStableFunc(all, func(a, b valued) int { return cmp.Compare(len(b.members), len(a.members)) })
	return all
}

// checkDisks checks the free space.
func (r *run) checkDisks(context.Context) {
	for _, m := range r.liveMembers() {
		m.checkOperators(r.inCluster())
		if c := m.survey.Triton.OK; c != nil && r.inCluster() && node.CanBeShared(c.Type) {
			m.addFinding(Disk, Warning, "set env: {TRITON_CACHE_DIR: /tmp/triton-cache} in the inventory",
				"Triton compiles kernels in %s, which is on %s, where ranks wait for each other's locks",
				node.QuotePath(c.Folder), c.Type)
		}
		for _, what := range slices.Sorted(maps.Keys(m.survey.Disks)) {
			p := m.survey.Disks[what]
			if why := p.failureReason(); why != "" {
				m.addFinding(Disk, Error, "", "%s: %s", what, why)
				continue
			}
			m.judgeRoom(Disk, what, *p.OK, r.opt.MinFree)
		}
	}
}

// checkOperators finds problems that make nodes wait for compiled operators.
func (m *member) checkOperators(several bool) {
	o := m.survey.Operators.OK
	if o == nil {
		return
	}
	if several && node.CanBeShared(o.Type) {
		m.addFinding(Disk, Warning,
			"install a wheel with the ops, or set env: {TORCH_EXTENSIONS_DIR: /tmp/torch_extensions} in the inventory",
			"torch compiles ops in %s, which is on %s, where nodes wait for each other's locks",
			node.QuotePath(o.Folder), o.Type)
	}
	for _, l := range o.Locks {
		m.addFinding(Disk, Error, "if no build is running, delete it: rm "+node.PlainPath(l.path, "FILE"),
			"%s is a lock from %s ago: programs that need this op wait for it forever",
			node.QuotePath(l.path), nodeerr.Own(ui.Duration(time.Duration(min(l.seconds, 1e9)*float64(time.Second)))))
	}
}

// fewInodes is too few for new files.
const fewInodes = 1000

// judgeRoom checks one place for files.
func (m *member) judgeRoom(kind Check, what string, p room, least int64) {
	folder := node.PlainPath(p.Path, "FOLDER") // the node sent it, and a user may copy the hint
	try := "free disk space: df -h " + folder
	if what == "/dev/shm" {
		try += "; in a container, use docker run --shm-size 16g, or an emptyDir of medium Memory"
	}
	name := what
	if p.Path != what {
		name += " (" + node.QuotePath(p.Path) + ")"
	}
	switch {
	case p.Unwritable != "":
		m.addFinding(kind, Error, "check its owner and its mount: ls -ld "+folder+"; findmnt -T "+folder, "%s: not writable: %s", name, p.Unwritable)
	case p.Free < least:
		m.addFinding(kind, Error, try, "%s has %s free, less than %s", name, nodeerr.Own(ui.Size(p.Free)), ui.Size(least))
	case p.Inodes >= 0 && p.Inodes < fewInodes:
		m.addFinding(kind, Error, "free inodes: df -i "+folder, "%s has inodes for only %d more files",
			name, nodeerr.Own(p.Inodes))
	}
}

// checkPaths compares the nodes' views of data and output.
func (r *run) checkPaths(ctx context.Context) {
	live := r.liveMembers()
	for _, path := range r.opt.Data {
		for _, m := range live {
			if why := m.survey.Data[path].failureReason(); why != "" {
				m.addFinding(Paths, Error, "mount or copy it, and check: ls -ld "+path, "--data %s: %s", path, why)
			} else if m.survey.Data[path].OK.Entries == 0 {
				m.addFinding(Paths, Error, "check that it is mounted: findmnt -T "+path, "--data %s is empty", path)
			}
		}
		kinds := groupByValue(live, func(m *member) (string, bool) {
			d := m.survey.Data[path].OK
			if d == nil || d.Entries == 0 {
				return "", false
			}
			return d.Digest, true
		})
		for _, kind := range kinds[min(1, len(kinds)):] {
			for _, m := range kind.members {
				most, has := kinds[0].members[0].survey.Data[path].OK, m.survey.Data[path].OK
				m.addFinding(Paths, Error, "check that it is mounted, or that the copy is complete",
					"--data %s: %s, %s, but %s have %s, %s with different names or sizes",
					path, ui.Count(has.Entries, "item"), ui.Size(has.Bytes),
					kinds[0].of(len(live)), ui.Count(most.Entries, "item"), ui.Size(most.Bytes))
			}
		}
	}
	r.checkOutputs(ctx, live)
}

// checkOutputs checks that nodes can write to the output folders, and that they see the
// first node's file.
func (r *run) checkOutputs(ctx context.Context, live []*member) {
	for _, path := range r.opt.Output {
		for _, m := range live {
			p := m.survey.Output[path]
			if why := p.failureReason(); why != "" {
				m.addFinding(Paths, Error, "check it with: ls -ld "+path, "--output %s: %s", path, why)
				continue
			}
			m.judgeRoom(Paths, "--output "+path, *p.OK, r.opt.MinFree)
		}
	}
	if len(r.opt.Output) == 0 || len(live) < 2 || live[0] != r.firstMember() {
		return
	}
	seen := make([]map[string]part[bool], len(r.members))
	r.askAll(ctx, Paths, live[1:], lookLimit+askLimit, func(ctx context.Context, m *member) error {
		return m.agent.Call(ctx, agent.Request{"do": "seen", "paths": r.opt.Output}, &seen[m.index])
	})
	for _, path := range r.opt.Output {
		if f := r.firstMember().survey.Output[path]; f.OK == nil || f.OK.Unwritable != "" {
			continue
		}
		var with, without []*member
		for _, m := range live[1:] {
			switch p, asked := seen[m.index][path]; {
			case !asked || m.survey.Output[path].OK == nil:
			case p.failureReason() != "":
				m.addFinding(Paths, Error, "", "--output %s: %s", path, p.failureReason())
			case *p.OK:
				with = append(with, m)
			default:
				without = append(without, m)
			}
		}
		for _, m := range without {
			if len(with) > 0 {
				m.addFinding(Paths, Error, "check that it is mounted",
					"--output %s is not the same directory as on the other nodes: the file of %s is missing",
					path, r.firstMember().Host.Name)
			} else {
				m.addFinding(Paths, Warning, "use a shared file system for checkpoints of several nodes",
					"--output %s: not shared between nodes", path)
			}
		}
	}
}
