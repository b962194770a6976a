package inventory

import (
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/dsbuild/dsbuild/internal/lineerr"
)

// slotsWord matches a line of a hostfile. DeepSpeed allows no space around the equals sign, and
// ignores the text after the number.
var slotsWord = regexp.MustCompile(`^(\S+)(\s+)slots=(\d+)([\s#].*)?$`)

// timesEach returns how often each line occurs, 1 if not all occur equally often: a machine file of
// MPI or PBS has a line for each process of a host.
func (r *reader) timesEach() int {
	counts, times := map[string]int{}, 1
	for _, text := range r.textLines() {
		counts[text]++
		times = counts[text]
	}
	for _, n := range counts {
		if n != times || n > mostPerHost {
			return 1
		}
	}
	return times
}

// hostList reads lines of node expressions. As in the machine files of MPI, :N after one is the number
// of GPUs of its nodes.
func (r *reader) hostList() *Inventory {
	list := nodeList{reader: r, first: make(map[string]Position)}
	times, seen := r.timesEach(), map[string]bool{}
	for at, text := range r.textLines() {
		if times > 1 && seen[text] {
			continue
		}
		seen[text] = true
		text = withoutComment(text)
		expr, slots, counted := strings.Cut(text, ":")
		inside := func(offset int) Position {
			there := at
			there.Column += utf8.RuneCountInString(text[:offset])
			return there
		}
		var s settings
		if times > 1 {
			s.slots = some(times)
		}
		if counted {
			n, err := strconv.Atoi(slots)
			if err != nil || n < 1 || n > mostPerHost || n == sshPort {
				r.Add(inside(len(expr)+1),
					"set GPUs with NAME slots=N, or a port with port: in a YAML inventory (docs/nodes.md)",
					"invalid number of GPUs %s for %s: looks like a port",
					lineerr.Clip(slots), lineerr.Clip(expr))
				continue
			}
			s.slots = some(n)
		}
		if list.full || len(list.Problems) > enoughMistakes {
			break
		}
		for _, name := range list.expand(expr, at, inside) {
			list.addNode(name, at, s)
		}
	}
	return &Inventory{Hosts: list.hosts}
}

// In a list of hosts, a greater number than mostPerHost and the number sshPort look like ports.
const (
	mostPerHost = 128
	sshPort     = 22
)

// hostLine reads one line: its name, space, number and rest.
func (l *nodeList) hostLine(at Position, m []string) {
	name, s := m[1], settings{}
	if user, host, found := strings.Cut(name, "@"); found {
		if err := checkUser(user); err != nil {
			l.Add(at, "", "%v", err)
			return
		}
		name, s.user = host, some(user)
	}
	if err := checkName(name); err != nil {
		l.Add(at, "name the host in ~/.ssh/config (Host NAME, HostName ADDRESS)", "%v", err)
		return
	}
	n, err := strconv.Atoi(m[3])
	if err != nil || n < 1 || n > maxSlots {
		at.Column += utf8.RuneCountInString(m[1] + m[2])
		l.Add(at, "", "slots=%s is out of range (1 to %d)", lineerr.Clip(m[3]), maxSlots)
		return
	}
	s.slots = some(n)
	if rest := strings.TrimSpace(m[4]); rest != "" && !strings.HasPrefix(rest, "#") {
		text := "ignoring text after slots=N, as DeepSpeed does: " + lineerr.Clip(rest)
		l.notes = append(l.notes, Note{name, text})
	}
	l.addNode(name, at, s)
}

// enoughMistakes is the number of problems after which dsbuild stops reading node expressions:
// one line may hold very many.
const enoughMistakes = 1000
