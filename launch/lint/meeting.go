package lint

import (
	"bytes"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/launch/lint/script"
)

// Commands that print several names or addresses, where nothing chooses one of them.
var (
	printsHosts = regexp.MustCompile(`^(?:\$\(|` + "`" + `)\s*scontrol\s+show\s+hostnames?\b[^|]*$`)
	cutsList    = regexp.MustCompile(`echo\s+"?\$\{?SLURM_(?:JOB_|STEP_)?NODELIST\}?"?\s*\|\s*(?:cut|awk|sed|tr)\b`)
	// An array of one element, the whole list: NAME=("$LIST"), or NAME=$(scontrol ...), which is no array.
	quotedList = regexp.MustCompile(`(?m)^[ \t]*(\w+)=\("\$(?:\{?(\w+)\}?|\(scontrol show hostnames?\b[^|\n]*\))"\)`)
	plainList  = regexp.MustCompile(`(?m)^[ \t]*(?:export )?(\w+)="?(?:\$\(|` + "`" + `)\s*scontrol show hostnames?\b[^|\n]*$`)
)

// masterAddrSeveral finds master addresses that are several words, or the text of a command.
func masterAddrSeveral(s *subject) (hits []hit) {
	look := func(host script.Word, nodes int) {
		r, text := host.Only(), host.Text()
		switch {
		case r == nil || nodes == 1:
		case !r.Edited && printsHosts.MatchString(text):
			hits = append(hits, hit{at: host.Origin(), message: "the master is the list of all nodes, with a line for each"})
		case (r.Edited && strings.HasPrefix(r.Name, "SLURM_") && strings.HasSuffix(r.Name, "NODELIST") ||
			cutsList.MatchString(text)) && !strings.Contains(text, "scontrol"):
			hits = append(hits, hit{
				at: host.Origin(), severity: Warning, message: "the master is cut out of the list of nodes",
				why: "Slurm writes gpu[01-04] for neighbors, and a part of it is no host",
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
	return append(hits, s.listsOfOneElement()...)
}

// portValue finds ports that are no valid number, or not always one.
func portValue(s *subject) (hits []hit) {
	look := func(port script.Word) {
		text, known := port.Literal()
		n, err := strconv.Atoi(text)
		r := port.Only()
		switch {
		case known && err == nil && n > 65535:
			hits = append(hits, hit{
				at: port.Origin(), message: "there is no port " + text,
				why: "ports end at 65535: torch rejects it, or uses " + strconv.Itoa(n%65536),
			})
		case r == nil || r.Edited:
		case r.Name == "SLURM_JOB_ID" || r.Name == "SLURM_JOBID":
			hits = append(hits, hit{
				at: port.Origin(), message: "the port is the job ID",
				why: "ports end at 65535, so every job with a higher ID fails, and those below 1024 need root",
			})
		case r.Name == "RANDOM":
			hits = append(hits, hit{
				at: port.Origin(), message: "the port is $RANDOM, a number from 0 to 32767",
				why: "one job in 32 gets a port below 1024, which needs root (\"permission denied\")",
			})
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

// listsOfOneElement finds lists of all nodes that are one element of an array, or no array, where element 0 is read.
func (s *subject) listsOfOneElement() (hits []hit) {
	if s.job.nodes == 1 {
		return nil
	}
	texts := map[string]bool{} // variables with the list as text
	add := func(at int, name string) {
		if !s.inComment(at) && bytes.Contains(s.Text, []byte("${"+name+"[0]}")) {
			hits = append(hits, hit{
				at: at, message: name + " has one element, the text with all nodes",
				why: "${" + name + "[0]} is a line for each host, which no command takes for a host",
				fix: "use " + name + "=($(scontrol show hostnames \"$SLURM_JOB_NODELIST\"))",
			})
		}
	}
	group := func(m []int, i int) string {
		if m[2*i] < 0 {
			return ""
		}
		return string(s.Text[m[2*i]:m[2*i+1]])
	}
	for _, m := range plainList.FindAllSubmatchIndex(s.Text, -1) {
		name := group(m, 1)
		texts[name] = true
		if !regexp.MustCompile(`\b` + name + `\+?=\(`).Match(s.Text) {
			add(m[2], name)
		}
	}
	for _, m := range quotedList.FindAllSubmatchIndex(s.Text, -1) {
		if list := group(m, 2); list == "" || texts[list] {
			add(m[2], group(m, 1))
		}
	}
	return hits
}
