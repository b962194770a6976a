package lint

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/internal/lineerr"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/launch/lint/script"
)

func fixedPort(s *subject) []hit {
	if _, alone := findOption(s.job.options, "exclusive"); alone {
		return nil
	}
	var hits []hit
	severity := s.portSeverity()
	add := func(port script.Word) {
		text, known := port.Literal()
		if n, err := strconv.Atoi(text); known && err == nil && n > 0 && n <= 65535 {
			hits = append(hits, hit{at: port.Origin(), severity: severity, message: "the master port is always " + text})
		}
	}
	for _, l := range s.launches {
		srun := l.Starter("srun")
		port, ok := l.port()
		_, alone := l.findFlag("standalone")
		switch {
		case ok && !l.Remote && (s.isBatch() || srun != nil):
			add(port)
		case !ok && !alone && l.kind == "torchrun" && severity == Warning && l.isSingleNode(s.job) && l.backend() == "static" &&
			!l.perTask() && !usesPET(s) && !s.assignsVariable("MASTER_PORT") && !l.Remote && !l.open:
			hits = append(hits, hit{at: l.At, severity: severity, message: "torchrun uses its usual port, 29500"})
		}
	}
	for a := range s.sets() {
		if a.Name == "MASTER_PORT" && !s.ignoresMasterPort(a.Assignment) &&
			(s.isBatch() || len(s.commandsNamed("srun")) > 0 || a.Depth > 0) {
			add(a.Value)
		}
	}
	return hits
}

// portSeverity returns the severity of a fixed port: jobs that leave GPUs of their node to others, and the jobs of
// an array, probably meet on a node.
func (s *subject) portSeverity() Severity {
	_, array := findOption(s.Batch, "array")
	if array || s.job.nodes == 1 && s.job.gpus > 1 && s.job.gpus < 4 {
		return Warning
	}
	return Note
}

// ignoresMasterPort reports whether every launcher has a different port, and nothing else
// may read the variable.
func (s *subject) ignoresMasterPort(a *script.Assignment) bool {
	others := slices.ContainsFunc(s.launches, func(l *launch) bool {
		port, ok := l.port()
		return ok && len(port.Chars) > 0 && port.Origin() == a.Value.Origin() || !ok && l.kind != "torchrun"
	})
	return len(s.launches) > 0 && !others && !slices.ContainsFunc(s.Commands, func(c *script.Command) bool {
		file, _ := pythonScript(c)
		return file != ""
	})
}

// isOwnAddress reports whether an address leads to the node itself.
func isOwnAddress(host string) bool {
	host = strings.Trim(host, "[]")
	if host == "localhost" || strings.HasPrefix(host, "localhost.") || host == "ip6-localhost" {
		return true
	}
	address, err := netip.ParseAddr(host)
	return err == nil && (address.IsLoopback() || address.IsUnspecified())
}

// Hosts of a rendezvous that a failing command makes localhost.
var (
	fallsBack = regexp.MustCompile(`\|\|\s*echo\s+["']?(?:localhost|127\.0\.0\.1)`)
	namesHost = regexp.MustCompile(`HOST|ADDR|MASTER|HEAD|_IP$|ENDPOINT`)
)

func masterAddrLocalhost(s *subject) []hit {
	var hits []hit
	for _, l := range s.launches {
		st := s.stepOfLaunch(l)
		if low, _, _ := l.nodeRange(st); !l.isMultiNode(st) || l.Branch || low == 1 || s.sharesHost(l) {
			continue
		}
		if f, ok := l.findFlag("standalone"); ok {
			hits = append(hits, hit{at: f.at, message: "--standalone is for one node, but the job has several"})
		}
		host, ok := l.host()
		text, known := host.Literal()
		if !ok || !known || !isOwnAddress(text) {
			continue
		}
		h := hit{at: host.Origin(), message: "several nodes use the rendezvous address " + text}
		f, ranked := l.nodeRank()
		if n, known := f.value.Int(); ranked && known && n == 0 && l.Starter("srun") == nil {
			// The rendezvous listens there, and torch 2.4 and newer takes the address of each node's own command.
			h.severity, h.message = Warning, "node 0 of several uses the rendezvous address "+text
			h.why = "torch up to 2.3 passes it on to the other nodes, which then wait at their own address"
		}
		hits = append(hits, h)
	}
	for _, a := range s.Assignments {
		if r := a.Value.Only(); r != nil && fallsBack.MatchString(r.String()) && namesHost.MatchString(a.Name) && !a.Branch &&
			len(s.launches) > 0 {
			hits = append(hits, hit{
				at: a.Value.Origin(), severity: Warning, message: a.Name + " falls back to localhost",
				why: "if the command fails on the nodes, as scontrol does in most containers, each node waits for the others at its own address",
				fix: "let the script fail there, or find the host in front of srun",
			})
		}
		text, known := a.Value.Literal()
		if a.Name == "JAX_COORDINATOR_ADDRESS" {
			text, _, _ = strings.Cut(text, ":")
		} else if a.Name != "MASTER_ADDR" {
			continue
		}
		if !known || !isOwnAddress(text) || a.Exported == 0 || a.Branch {
			continue
		}
		if s.job.nodes > 1 && s.laterStepsRead(a) {
			hits = append(hits, hit{
				at:      a.Value.Origin(),
				message: fmt.Sprintf("%s is %s in a job of %d nodes", a.Name, text, s.job.nodes),
			})
		}
	}
	return hits
}

// sharesHost reports whether the script starts the launchers of several nodes in parallel
// on one host: each has a different node rank or none has one, and none is started elsewhere.
func (s *subject) sharesHost(l *launch) bool {
	own, ranked := l.nodeRank()
	if l.Depth > 0 {
		return false
	}
	if l.Loop && l.Background && (!ranked || len(own.value.Refs()) > 0) {
		return true
	}
	return slices.ContainsFunc(s.launches, func(o *launch) bool {
		other, also := o.nodeRank()
		differ := !ranked && o != l || other.value.Text() != own.value.Text()
		return also == ranked && o.Depth == 0 && (o.Background || l.Background) && o.kind == l.kind && differ
	})
}

// stepOfLaunch returns the step of a launcher's srun, or the job without srun.
func (s *subject) stepOfLaunch(l *launch) step {
	if srun := l.Starter("srun"); srun != nil {
		return s.stepOfStarter(srun)
	}
	return s.job
}

func masterAddrFixed(s *subject) []hit {
	if !s.isBatch() {
		return nil
	}
	var hits []hit
	var asked []string // the nodes that the job asks for by name
	var err error
	if o, ok := findOption(s.Batch, "nodelist"); ok {
		asked, err = inventory.Expand(o.Value.Text())
	}
	add := func(host script.Word) {
		text, known := host.Literal()
		if known && text != "" && !isOwnAddress(text) && err == nil && !slices.Contains(asked, text) {
			hits = append(hits, hit{at: host.Origin(), message: "the master is always " + text})
		}
	}
	for _, l := range s.launches {
		if host, ok := l.host(); ok && !l.isSingleNode(s.stepOfLaunch(l)) && !l.Remote {
			add(host)
		}
	}
	for _, a := range s.Assignments {
		if a.Name == "MASTER_ADDR" && !a.Branch && s.job.nodes != 1 {
			add(a.Value)
		}
	}
	return hits
}

func masterAddrUnset(s *subject) []hit {
	completes := func(a *script.Assignment) bool { // MASTER_ADDR=${MASTER_ADDR}.cluster
		return slices.ContainsFunc(a.Value.Refs(), func(r *script.Ref) bool {
			return r.Name == "MASTER_ADDR" && !r.Assigned &&
				r.Default == nil
		})
	}
	set := func(a set) bool { return a.Name == "MASTER_ADDR" && !completes(a.Assignment) }
	if s.setsUnknown() || containsFunc(s.sets(), set) {
		return nil
	}
	expected := slices.ContainsFunc(s.Assignments, func(a *script.Assignment) bool { return a.Name == "MASTER_ADDR" })
	var hits []hit
	for _, l := range s.launches {
		srun := l.Starter("srun")
		// A one-node job that waits for others gets the address from its submitter.
		if !s.isBatch() && srun == nil || l.isSingleNode(s.stepOfLaunch(l)) || s.job.nodes == 1 || l.Remote {
			continue
		}
		host, _ := l.host()
		for _, c := range host.Chars {
			if c.Ref != nil && c.Ref.Name == "MASTER_ADDR" && c.Ref.Default == nil && !c.Ref.Required {
				severity := Error
				if !s.isBatch() || expected || srun != nil && setsMasterAddr(srun) {
					severity = Warning // the user's shell may set it
				}
				hits = append(hits, hit{at: c.At, severity: severity})
			}
		}
	}
	return hits
}

// setsMasterAddr reports whether srun starts a container, in which a hook for PyTorch sets MASTER_ADDR.
func setsMasterAddr(srun *script.Command) bool {
	return slices.ContainsFunc(srun.Options, func(o script.Option) bool { return strings.HasPrefix(o.Name, "container-") })
}

func noRendezvous(s *subject, l *launch) []hit {
	if l.kind != "torchrun" || l.open || !l.isMultiNode(s.stepOfLaunch(l)) || l.Branch || usesPET(s) || s.sharesHost(l) {
		return nil
	}
	if _, ok := l.findFlag("standalone"); ok {
		return nil // master-addr-localhost
	}
	if _, ok := l.host(); ok {
		return nil
	}
	says := "torchrun on several nodes has no --master-addr"
	if b := l.backend(); b != "static" {
		says = "torchrun on several nodes has no --rdzv-endpoint"
		if _, ok := l.findFlag("master-addr"); ok {
			says += " (" + b + " ignores --master-addr)"
		}
	}
	return []hit{{at: l.At, message: says}}
}

func rdzvIDConstant(s *subject, l *launch) []hit {
	f, ok := l.findFlag("rdzv-id")
	if l.kind != "torchrun" || !ok || l.isSingleNode(s.stepOfLaunch(l)) || l.backend() == "static" || s.sharesHost(l) {
		return nil
	}
	if text, known := f.value.Literal(); known && text != "" {
		return []hit{{at: f.value.Origin(), message: "the rendezvous ID is always " + lineerr.Clip(text)}}
	}
	return nil
}

// nodeRankTooHigh finds node ranks that exceed the number of nodes.
func nodeRankTooHigh(s *subject, l *launch) []hit {
	f, _ := l.nodeRank()
	rank, known := f.value.Int()
	_, nodes, sure := l.nodeRange(step{})
	if !known || !sure || rank < nodes || l.open || l.backend() != "static" || l.Branch || usesPET(s) {
		return nil
	}
	return []hit{{at: f.value.Origin(), message: fmt.Sprintf("node rank %d, but the launch has %s", rank, countOf(nodes, "node"))}}
}

func c10dWithNodeRank(s *subject, l *launch) []hit {
	f, ok := l.nodeRank()
	if l.isSingleNode(s.stepOfLaunch(l)) {
		return nil
	}
	if l.kind == "torchrun" && ok && l.backend() == "c10d" { // accelerate asks for --machine_rank
		return []hit{{at: f.at}}
	}
	return nil
}

func elasticWithoutMaxRestarts(_ *subject, l *launch) []hit {
	f, ok := l.nnodes()
	if l.kind != "torchrun" || !ok || l.open {
		return nil
	}
	low, high, found := f.value.Cut(':')
	if !found || low.Text() == high.Text() {
		return nil
	}
	restarts, given := l.findFlag("max-restarts")
	if n, known := restarts.value.Int(); given && (!known || n > 0) {
		return nil
	}
	return []hit{{at: f.value.Origin(), message: "--nnodes " + lineerr.Clip(f.value.Text()) + " without --max-restarts"}}
}

// ownHost matches commands that print the name or an address of the host that runs them.
var ownHost = regexp.MustCompile(`^(?:\$\(|` + "`" + `)\s*hostname\b`)

// masterAddrOwnHost finds masters that are another host on each node.
func masterAddrOwnHost(s *subject, l *launch) []hit {
	st := s.stepOfLaunch(l)
	host, _ := l.host()
	r := host.Only()
	own := r != nil && (ownHost.MatchString(r.String()) || r.Name == "HOSTNAME" && !r.Assigned && r.Default == nil)
	onEach := s.onSeveral(l.Command) && r != nil && r.Depth >= l.Depth || !s.isBatch() && l.Starter("srun") == nil && l.Depth == 0
	if !own || !onEach || l.kind != "torchrun" || l.backend() == "static" && !s.onSeveral(l.Command) || !l.isMultiNode(st) || l.Branch ||
		l.Loop || s.sharesHost(l) {
		return nil
	}
	return []hit{{at: host.Origin(), message: "the rendezvous is at " + r.String() + ", a different host on each node"}}
}

// inArray matches an endpoint within the elements of an array.
var inArray = regexp.MustCompile(`--(?:rdzv[-_]endpoint|master[-_]addr)[= ]["']?\$\{?SLURM_LAUNCH_NODE_IPADDR`)

// masterAddrNotFirst finds variables of Slurm that are not the address of the first node.
func masterAddrNotFirst(s *subject) []hit {
	var hits []hit
	look := func(host script.Word) {
		switch r := host.Only(); {
		case r == nil || r.Edited:
		case r.Name == "SLURM_SUBMIT_HOST":
			hits = append(hits, hit{at: host.Origin(), message: "the master is $SLURM_SUBMIT_HOST, where sbatch was run"})
		case r.Name == "SLURM_LAUNCH_NODE_IPADDR" && !s.isBatch():
			hits = append(hits, hit{
				at: host.Origin(), severity: Warning, message: "the master is $SLURM_LAUNCH_NODE_IPADDR, the host where srun was run",
				why: "without a batch script that is a login node, where no rank listens",
			})
		case slices.Contains([]string{"SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NODELIST"}, r.Name):
			hits = append(hits, hit{
				at:      host.Origin(),
				message: "the master is $" + r.Name + ", a list of all nodes such as gpu[01-04]",
			})
		}
	}
	for _, l := range s.launches {
		if host, ok := l.host(); ok && l.kind != "deepspeed" && !l.isSingleNode(s.stepOfLaunch(l)) {
			look(host)
		}
	}
	for _, a := range s.Assignments {
		if a.Name == "MASTER_ADDR" && a.Exported > 0 && s.job.nodes != 1 && s.laterStepsRead(a) {
			look(a.Value)
		}
	}
	// In the elements of an array, which this package does not follow.
	if at := inArray.FindIndex(s.Text); len(hits) == 0 && at != nil && len(s.launches) > 0 && !s.isBatch() && !s.inComment(at[0]) {
		hits = append(hits, hit{
			at: at[0], severity: Warning, message: "the master is $SLURM_LAUNCH_NODE_IPADDR, the host where srun was run",
			why: "without a batch script that is a login node, where no rank listens",
		})
	}
	return hits
}
