package launch

import (
	"slices"
	"strconv"
	"strings"
)

// slots are the processes that DeepSpeed's launcher may start on a node.
type slots struct {
	host string
	ids  []int
}

// allSlots are the slots in the hostfile; nil without a hostfile.
func (l deepspeedLauncher) allSlots() []slots {
	var all []slots
	for _, h := range l.job.Hosts {
		s := slots{host: h.Address}
		for i := range l.job.ProcsOf(h) {
			s.ids = append(s.ids, i)
		}
		all = append(all, s)
	}
	return all
}

// activeSlotsByNode are the slots that pass the filters. DeepSpeed's launcher reads
// the filters the same way.
func (l deepspeedLauncher) activeSlotsByNode() []slots {
	filter := l.job.Include + l.job.Exclude
	if filter == "" {
		return l.allSlots()
	}
	named := map[string][]int{}
	for _, part := range strings.Split(filter, "@") {
		host, ids, _ := strings.Cut(part, ":")
		named[host] = append(named[host], parseNumbers(ids)...)
	}
	var all []slots
	for _, s := range l.allSlots() {
		ids, isNamed := named[s.host]
		chosen := func(id int) bool { return isNamed && (len(ids) == 0 || slices.Contains(ids, id)) }
		s.ids = slices.DeleteFunc(slices.Clone(s.ids), func(id int) bool { return chosen(id) != (l.job.Include != "") })
		if len(s.ids) > 0 {
			all = append(all, s)
		}
	}
	return all
}

func parseNumbers(list string) []int {
	var all []int
	for _, word := range strings.Split(list, ",") {
		if n, err := strconv.Atoi(word); err == nil {
			all = append(all, n)
		}
	}
	return all
}

// ActiveSlots is the number of processes of DeepSpeed's launcher.
func (l deepspeedLauncher) ActiveSlots() int {
	if len(l.job.Hosts) == 0 {
		return l.job.Procs
	}
	n := 0
	for _, s := range l.activeSlotsByNode() {
		n += len(s.ids)
	}
	return max(n, 1)
}

// withAddresses replaces the inventory's names in a filter by the hostfile's
// addresses.
func (l deepspeedLauncher) withAddresses(filter string) string {
	parts := strings.Split(filter, "@")
	for i, part := range parts {
		host, ids, some := strings.Cut(part, ":")
		for _, h := range l.job.Hosts {
			if host == h.Node {
				host = h.Address
			}
		}
		if parts[i] = host; some {
			parts[i] += ":" + ids
		}
	}
	return strings.Join(parts, "@")
}

// checkFilters checks the nodes and slots in --include and --exclude.
func (b launcherChecks) checkFilters() {
	j, l := b.job, deepspeedLauncher{b.job}
	j.Include, j.Exclude = l.withAddresses(j.Include), l.withAddresses(j.Exclude)
	if j.Include != "" && j.Exclude != "" {
		b.addProblem(b.said["exclude"], "give one of them", "include and exclude cannot be used together")
		return
	}
	for _, key := range []string{"include", "exclude"} {
		said, ok := b.said[key]
		if !ok {
			continue
		}
		if len(j.Hosts) == 0 {
			b.addProblem(said, "add -i INVENTORY", "%s chooses nodes of an inventory, but there is none", key)
			continue
		}
		b.checkFilter(said)
	}
	if len(j.Hosts) > 0 && len(l.activeSlotsByNode()) == 0 {
		b.addProblem(b.said["exclude"], "", "no node is left")
	}
}

func (b launcherChecks) checkFilter(said Setting) {
	l := deepspeedLauncher{b.job}
	var known []string
	have := map[string][]int{}
	for _, s := range l.allSlots() {
		known = append(known, s.host)
		have[s.host] = s.ids
	}
	for _, part := range strings.Split(l.withAddresses(said.text()), "@") {
		host, ids, _ := strings.Cut(part, ":")
		if !slices.Contains(known, host) {
			b.addProblem(said, nearest(host, known), "the hostfile has no node %q", host)
			continue
		}
		for _, id := range parseNumbers(ids) {
			if !slices.Contains(have[host], id) {
				b.addProblem(said, "slots count from 0", "%s has no slot %d: it has %d", host, id, len(have[host]))
			}
		}
	}
}
