package lint

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/launch/lint/script"
)

// Commands that print several names or addresses, where nothing chooses one of them.
var (
	printsHosts     = regexp.MustCompile(`^(?:\$\(|` + "`" + `)\s*scontrol\s+show\s+hostnames?\b[^|]*$`)
	printsAddresses = regexp.MustCompile(`^(?:\$\(|` + "`" + `)\s*hostname\s+(?:-I|--all-ip-addresses)\s*(?:\)|` + "`" + `)$`)
	withPort        = regexp.MustCompile(`^(?:\w+://.*|[^:]+:\d+)$`)
	cutsList        = regexp.MustCompile(`echo\s+"?\$\{?SLURM_(?:JOB_|STEP_)?NODELIST\}?"?\s*\|\s*(?:cut|awk|sed|tr)\b`)
	endsInPort      = regexp.MustCompile(`:\d+$`)
	notExpanded     = regexp.MustCompile(`^\$[({]?[A-Za-z_]`)
)

// masterAddrSeveral finds master addresses that are several words, or the text of a command.
func masterAddrSeveral(s *subject) (hits []hit) {
	look := func(host script.Word, nodes int) {
		r, text := host.Only(), host.Text()
		literal, known := host.Literal()
		switch {
		case known && notExpanded.MatchString(literal):
			hits = append(hits, hit{
				at: host.Origin(), message: "the master is the text " + showWord(host),
				why: "the shell does not expand it in single quotes, and no host has this name",
				fix: "use double quotes, or none",
			})
		case withPort.MatchString(literal) || strings.Count(text, ":") == 1 && endsInPort.MatchString(text) ||
			strings.Count(text, ":") == 1 &&
				slices.ContainsFunc(host.Refs(), func(r *script.Ref) bool { return strings.HasSuffix(r.Name, "PORT") }):
			hits = append(hits, hit{
				at: host.Origin(), message: "the master " + showWord(host) + " has a port",
				why: "the launcher takes all of it for the name of a host, and does not find it",
				fix: "put the port into --master-port or MASTER_PORT",
			})
		case r != nil && !r.Edited && printsHosts.MatchString(text) && nodes != 1:
			hits = append(hits, hit{at: host.Origin(), message: "the master is the list of all nodes, with a line for each"})
		case r != nil && (r.Edited && strings.HasPrefix(r.Name, "SLURM_") && strings.HasSuffix(r.Name, "NODELIST") ||
			cutsList.MatchString(text)) && !strings.Contains(text, "scontrol") && nodes != 1:
			hits = append(hits, hit{
				at: host.Origin(), severity: Warning, message: "the master is cut out of the list of nodes",
				why: "Slurm writes gpu[01-04] for neighbors, and a part of it is no host",
			})
		case r != nil && listElement(r, s.Text) && nodes != 1:
			hits = append(hits, hit{
				at: host.Origin(), message: "the master is " + r.String() + ", and " + r.Name + " is no array",
				why: "element 0 of a text is all of it, a line for each host",
				fix: "write parentheses around the list: " + r.Name + "=($(scontrol show hostnames \"$SLURM_JOB_NODELIST\"))",
			})
		case r != nil && printsAddresses.MatchString(text):
			hits = append(hits, hit{
				at: host.Origin(), severity: Warning, message: "the master is what hostname -I prints, all addresses of the host",
				fix: "use the first: $(hostname -I | cut -d' ' -f1), if the other nodes reach it",
			})
		}
	}
	for _, l := range s.launches {
		if host, ok := l.host(); ok {
			look(host, s.stepOfLaunch(l).nodes)
		}
	}
	for a := range s.sets() {
		if a.Name == "MASTER_ADDR" {
			look(a.Value, s.job.nodes)
		}
	}
	return hits
}

// portValue finds ports that are no valid number, or not always one.
func portValue(s *subject) (hits []hit) {
	look := func(port script.Word) {
		text, known := port.Literal()
		n, err := strconv.Atoi(text)
		r := port.Only()
		switch {
		case known && err == nil && n > 65535:
			hits = append(hits, hit{at: port.Origin(), message: "there is no port " + text,
				why: "ports end at 65535: torch rejects it, or uses " + strconv.Itoa(n%65536)})
		case r == nil || r.Edited:
		case r.Name == "SLURM_JOB_ID" || r.Name == "SLURM_JOBID":
			hits = append(hits, hit{at: port.Origin(), message: "the port is the job ID",
				why: "ports end at 65535, so every job with a higher ID fails, and those below 1024 need root"})
		case r.Name == "RANDOM":
			hits = append(hits, hit{at: port.Origin(), message: "the port is $RANDOM, a number from 0 to 32767",
				why: "one job in 32 gets a port below 1024, which needs root (\"permission denied\")"})
		}
	}
	for _, l := range s.launches {
		if port, ok := l.port(); ok {
			look(port)
		}
	}
	for a := range s.sets() {
		if a.Name == "MASTER_PORT" {
			look(a.Value)
		}
	}
	return hits
}

// ownHostInTasks finds MASTER_ADDR=$(hostname) in the shell of each task.
func ownHostInTasks(s *subject) (hits []hit) {
	for a := range s.sets() {
		r := a.Value.Only()
		if a.Name != "MASTER_ADDR" || a.Branch || a.Depth < 1 || r == nil || r.Depth < 1 || r.Default != nil ||
			!(ownHost.MatchString(r.String()) || r.Name == "HOSTNAME" && !r.Assigned || r.Name == "SLURMD_NODENAME") {
			continue
		}
		i := slices.IndexFunc(a.Via, func(c *script.Command) bool { return c.Name() == "srun" })
		if i < 0 {
			continue
		}
		if st := s.stepOfStarter(a.Via[i]); st.nodes > 1 && st.tasks != 1 {
			hits = append(hits, hit{at: a.Value.Origin(), severity: Error,
				message: "MASTER_ADDR is " + r.String() + " in each task, another host on each node"})
		}
	}
	return hits
}

// randomOnEachNode finds rendezvous IDs and ports that each run of a script chooses for itself, if the script is for one of several nodes.
func randomOnEachNode(s *subject) (hits []hit) {
	for _, l := range s.launches {
		if s.isBatch() || l.Starter("srun", "ssh") != nil || l.kind != "torchrun" || !l.isMultiNode(step{}) || l.Branch || l.Loop ||
			l.InFunction || s.sharesHost(l) {
			continue
		}
		id, _ := l.findFlag("rdzv-id")
		port, _ := l.port()
		for what, w := range map[string]script.Word{"rendezvous ID": id.value, "port": port} {
			for _, c := range w.Chars {
				if c.Ref != nil && chosenAtRandom.MatchString(c.Ref.String()) {
					hits = append(hits, hit{
						at: c.At, severity: Warning, message: "each node chooses its own " + what,
						fix: "choose it once and give it to all nodes, as an argument of the script",
					})
				}
			}
		}
	}
	return hits
}

// stepExceedsJob finds steps on more nodes than the job has.
func stepExceedsJob(s *subject) (hits []hit) {
	o, given := findOption(s.Batch, "nodes")
	if !given || s.job.nodes < 1 || strings.Contains(o.Value.Text(), "-") {
		return nil
	}
	for _, c := range s.commandsNamed("srun") {
		nodes, ok := findOption(c.Options, "nodes")
		_, other := findOption(c.Options, "jobid")
		if n := s.job.resolveNumber(nodes.Value); ok && !other && !c.Open && n > s.job.nodes {
			hits = append(hits, hit{at: nodes.At,
				message: fmt.Sprintf("srun asks for %d nodes, but the job has %s", n, countOf(s.job.nodes, "node"))})
		}
	}
	return hits
}

// foregroundLoop finds loops that start the launchers of several nodes without &.
func foregroundLoop(s *subject) (hits []hit) {
	for _, l := range s.launches {
		rank, ranked := l.nodeRank()
		srun := l.Starter("srun")
		if !l.Loop || l.Background || l.Branch || l.InFunction || !ranked ||
			!slices.ContainsFunc(rank.value.Refs(), func(r *script.Ref) bool { return r.Assigned }) || !l.isMultiNode(s.job) || srun != nil &&
			!l.overHosts() {
			continue
		}
		hits = append(hits, hit{at: l.At})
	}
	ranked := regexp.MustCompile(`--(node|machine)[-_]rank[= ]\S*\$`)
	launcher := regexp.MustCompile(`\b(torchrun|torch\.distributed\.(run|launch)|accelerate launch)\b`)
	for _, c := range s.commandsNamed("ssh") {
		text := c.Text()
		detached := strings.Contains(text, "nohup") || strings.HasSuffix(strings.TrimSpace(strings.Trim(text, `"'`)), "&") ||
			strings.Contains(text, "tmux") ||
			strings.Contains(text, "screen") || slices.ContainsFunc(c.Words[1:], func(w script.Word) bool { return w.Text() == "-f" })
		if c.Loop && !c.Background && !c.InFunction && !detached && launcher.MatchString(text) &&
			ranked.MatchString(text) {
			hits = append(hits, hit{at: c.At})
		}
	}
	return hits
}

// raySteps finds steps that end right after ray start has put its processes into the background.
func raySteps(s *subject) (hits []hit) {
	for _, c := range s.commandsNamed("ray") {
		blocks := slices.ContainsFunc(c.Words, func(w script.Word) bool { return w.HasPrefix("--block") })
		srun := c.Starter("srun")
		head := slices.ContainsFunc(c.Words, func(w script.Word) bool { return w.Text() == "--head" })
		if c.Arg(1) == "start" && head && s.onSeveral(c) && !c.Branch {
			hits = append(hits, hit{
				at: c.At, message: "srun starts ray with --head in each task", why: "each becomes the head of a separate cluster",
				fix: "use srun --nodes=1 --ntasks=1 --nodelist=HEAD ray start --head --block &",
			})
			continue
		}
		if c.Arg(1) != "start" || blocks || srun == nil || slices.ContainsFunc(s.Commands, func(o *script.Command) bool {
			return o.Seq > c.Seq && slices.Contains(o.Via, srun) // sleep infinity, or the program itself
		}) {
			continue
		}
		hits = append(hits, hit{at: c.At})
	}
	return hits
}

// listElement reports whether a Ref is ${NAME[0]} of a list of hosts that is set without parentheses.
func listElement(r *script.Ref, file []byte) bool {
	name := regexp.QuoteMeta(r.Name)
	return name != "" && bytes.Contains(file, []byte("${"+r.Name+"[0]}")) &&
		regexp.MustCompile(`(?m)\b`+name+`="?(?:\$\(|`+"`"+`)\s*scontrol show hostnames?\b[^|\n]*$`).Match(file) &&
		!regexp.MustCompile(`\b`+name+`\+?=\(`).Match(file)
}
