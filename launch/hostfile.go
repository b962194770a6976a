package launch

import (
	"slices"
	"strconv"
	"strings"
)

// slots are the processes of a node that DeepSpeed's launcher may start there.
type slots struct {
	host string
	ids  []int
}

// pool is what the hostfile offers; nil without one.
func (j *Job) pool() []slots {
	var all []slots
	for _, h := range j.Hosts {
		s := slots{host: h.Address}
		for i := range j.ProcsOf(h) {
			s.ids = append(s.ids, i)
		}
		all = append(all, s)
	}
	return all
}

// active is the pool without what the filters leave out, as DeepSpeed's own
// launcher reads them.
func (j *Job) active() []slots {
	filter := j.Include + j.Exclude
	if filter == "" {
		return j.pool()
	}
	named := map[string][]int{}
	for _, part := range strings.Split(filter, "@") {
		host, ids, _ := strings.Cut(part, ":")
		named[host] = append(named[host], numbers(ids)...)
	}
	var all []slots
	for _, s := range j.pool() {
		ids, isNamed := named[s.host]
		chosen := func(id int) bool { return isNamed && (len(ids) == 0 || slices.Contains(ids, id)) }
		s.ids = slices.DeleteFunc(slices.Clone(s.ids), func(id int) bool { return chosen(id) != (j.Include != "") })
		if len(s.ids) > 0 {
			all = append(all, s)
		}
	}
	return all
}

func numbers(list string) []int {
	var all []int
	for _, word := range strings.Split(list, ",") {
		if n, err := strconv.Atoi(word); err == nil {
			all = append(all, n)
		}
	}
	return all
}

// ActiveSlots is the number of processes that DeepSpeed's launcher starts.
func (j *Job) ActiveSlots() int {
	if len(j.Hosts) == 0 {
		return j.Procs
	}
	n := 0
	for _, s := range j.active() {
		n += len(s.ids)
	}
	return max(n, 1)
}

// addressed writes a filter with the names that the hostfile has: a node may be
// called by its name in the inventory.
func (j *Job) addressed(filter string) string {
	parts := strings.Split(filter, "@")
	for i, part := range parts {
		host, ids, some := strings.Cut(part, ":")
		for _, h := range j.Hosts {
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

// filters checks what --include and --exclude name.
func (b *builder) filters() {
	j := b.job
	j.Include, j.Exclude = j.addressed(j.Include), j.addressed(j.Exclude)
	if j.Include != "" && j.Exclude != "" {
		b.wrong(b.said["exclude"], "give one of them", "include and exclude cannot be used together")
		return
	}
	for _, key := range []string{"include", "exclude"} {
		said, ok := b.said[key]
		if !ok {
			continue
		}
		if len(j.Hosts) == 0 {
			b.wrong(said, "add -i INVENTORY", "%s chooses among the nodes of an inventory, and there is none", key)
			continue
		}
		b.filter(said)
	}
	if len(j.Hosts) > 0 && len(j.active()) == 0 {
		b.wrong(b.said["exclude"], "", "no node is left")
	}
}

func (b *builder) filter(said Setting) {
	var known []string
	have := map[string][]int{}
	for _, s := range b.job.pool() {
		known = append(known, s.host)
		have[s.host] = s.ids
	}
	for _, part := range strings.Split(b.job.addressed(said.text()), "@") {
		host, ids, _ := strings.Cut(part, ":")
		if !slices.Contains(known, host) {
			b.wrong(said, nearest(host, known), "the hostfile has no node %q", host)
			continue
		}
		for _, id := range numbers(ids) {
			if !slices.Contains(have[host], id) {
				b.wrong(said, "they count from 0", "%s has no slot %d: it has %d", host, id, len(have[host]))
			}
		}
	}
}
