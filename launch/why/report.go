package why

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/dsbuild/dsbuild/internal/ui"
)

// Report is the result of scanning a job's logs.
type Report struct {
	Cause    *Finding  `json:"cause"`    // null: no known sign
	Also     []Place   `json:"also"`     // the same sign in other logs and ranks
	Followed []Finding `json:"followed"` // other signs
	Notes    []string  `json:"notes"`    // about the logs
	Logs     int       `json:"logs"`     // how many were read
}

// Place is a line of a log.
type Place struct {
	Log  string `json:"log"`
	Line int    `json:"line"`
	Rank *int   `json:"rank,omitempty"`
	Node string `json:"node,omitempty"`
	Time string `json:"time,omitempty"` // as in the log
	// After is true if the line has no time. Time is then an earlier line's.
	After bool `json:"after,omitempty"`
}

// Finding is a sign with its first place.
type Finding struct {
	Place
	Sign  string `json:"sign"`
	Title string `json:"title"`
	Class Class  `json:"class"`
	// Warning is true if the program continued after the line.
	Warning bool   `json:"warning,omitempty"`
	Text    string `json:"text"`
	Code    string `json:"code,omitempty"`   // file and line of the program
	Detail  string `json:"detail,omitempty"` // of this failure
	Count   int    `json:"count"`            // lines with the sign, in all logs
	// Why, Hint and Prevent are the sign's.
	Why     string `json:"why"`
	Hint    string `json:"hint"`
	Prevent string `json:"prevent,omitempty"`
}

// placed is a hit of a log, at the time by which hits of several logs compare.
type placed struct {
	*Hit
	log *log
	at  time.Time // zero: unknown
}

func (p placed) place() Place {
	at := Place{Log: p.log.name, Line: p.Line, Node: p.Node, Time: p.when.text, After: p.when.text != "" && !p.exact}
	if p.Rank >= 0 {
		at.Rank = &p.Rank
	}
	return at
}

func (p placed) finding() Finding {
	s := p.Sign
	return Finding{
		Place: p.place(), Sign: s.ID, Title: s.Title, Class: s.Class, Warning: p.warning, Text: p.Text, Code: p.Code, Count: p.Count,
		Why: s.Why, Hint: s.Hint, Prevent: s.Prevent,
	}
}

// before reports whether p explains q.
func (p placed) before(q placed) bool {
	if a, b := p.Sign.Class.order(), q.Sign.Class.order(); a != b {
		return a < b
	}
	if p.log == q.log {
		return p.Line < q.Line
	}
	if p.at.IsZero() != q.at.IsZero() {
		return q.at.IsZero()
	}
	return p.at.Before(q.at)
}

// decide finds the first cause and its consequences.
func (r *Report) decide(logs []log) {
	newYear := overNewYear(logs)
	offsets := r.clockOffsets(logs, newYear)
	var all []placed
	watch := map[int]collective{}
	for i := range logs {
		l := &logs[i]
		maps.Copy(watch, l.scanner.watch)
		hits := l.scanner.all()
		slices.SortFunc(hits, func(a, b *Hit) int { return cmp.Compare(a.Line, b.Line) })
		for _, h := range hits {
			p := placed{Hit: h, log: l}
			if h.when.dated {
				p.at = h.when.in(newYear).Add(-offsets[l])
			}
			all = append(all, p)
		}
		if l.cut && len(hits) == 0 {
			r.note("%s ends within a line: its process was killed, or is still writing", l.name)
		}
	}
	var cause placed
	for _, p := range all {
		if !p.warning && (cause.Hit == nil || p.before(cause)) {
			cause = p
		}
	}
	if cause.Hit != nil {
		if cause.Rank < 0 {
			cause.Rank = rankOfOthers(cause, all)
		}
		first := cause.finding()
		r.Cause = &first
		if first.Class != Cause {
			first.Detail = cmp.Or(explainTimeouts(watch), explainRoot(logs, cause.Rank), explainSilence(logs))
		}
	}
	seen := map[*Sign]int{} // the index in Followed, from 1
	for _, p := range all {
		switch {
		case p.Hit == cause.Hit:
		case r.Cause != nil && p.Sign == cause.Sign && !p.warning:
			r.Cause.Count += p.Count
			r.Also = append(r.Also, p.place())
		case seen[p.Sign] > 0:
			r.Followed[seen[p.Sign]-1].Count += p.Count
		default:
			r.Followed = append(r.Followed, p.finding())
			seen[p.Sign] = len(r.Followed)
		}
	}
}

// rankOfOthers returns the rank of the other lines with the sign in the log, or -1 if they have several or none.
func rankOfOthers(cause placed, all []placed) int {
	rank := -1
	for _, p := range all {
		if p.log != cause.log || p.Sign != cause.Sign || p.Hit == cause.Hit {
			continue
		}
		if p.Rank < 0 || rank >= 0 && p.Rank != rank {
			return -1
		}
		rank = p.Rank
	}
	return rank
}

// explainRoot names the first failure of torchrun's list, unless it is the rank of the cause.
func explainRoot(logs []log, rank int) string {
	for _, l := range logs {
		if f := l.scanner.root; f.exit != "" && f.exit != "-15" && f.rank != rank && f.rank >= 0 {
			return fmt.Sprintf("torchrun's first observed failure is rank %d on %s, exit code %s", f.rank, f.node, f.exit)
		}
	}
	return ""
}

// explainSilence names the ranks of which no log has a sign.
func explainSilence(logs []log) string {
	failed := map[int]bool{}
	for _, l := range logs {
		failed[l.scanner.Rank] = failed[l.scanner.Rank] || l.scanner.hits > 0
	}
	delete(failed, -1)
	var silent []string
	for _, rank := range slices.Sorted(maps.Keys(failed)) {
		if !failed[rank] {
			silent = append(silent, strconv.Itoa(rank))
		}
	}
	if len(silent) == 0 {
		return ""
	}
	return "no failure in the logs of rank " + foldRanks(silent)
}

// clockOffsets returns how far each log's clock is ahead of most others, if the first and the last times of the logs
// agree on it.
func (r *Report) clockOffsets(logs []log, newYear bool) map[*log]time.Duration {
	type span struct {
		log         *log
		first, last time.Time
	}
	var spans []span
	for i := range logs {
		s := logs[i].scanner
		last := parseMoment(s.clock)
		if s.first.dated && last.dated && s.first != last { // one time says nothing of a clock
			spans = append(spans, span{&logs[i], s.first.in(newYear), last.in(newYear)})
		}
	}
	offsets := map[*log]time.Duration{}
	if len(spans) < 2 {
		return offsets
	}
	sorted := slices.SortedFunc(slices.Values(spans), func(a, b span) int { return a.first.Compare(b.first) })
	usual := sorted[(len(sorted)-1)/2]
	for _, s := range spans {
		begin, end := s.first.Sub(usual.first), s.last.Sub(usual.last)
		if begin.Abs() > 5*time.Minute && (end-begin).Abs() < begin.Abs()/2 {
			offsets[s.log] = begin
			r.note("the clock of %s and the clock of %[3]s differ by about %[2]s; times were compared without the difference",
				s.log.name, ui.Duration(begin.Abs().Round(time.Minute)), usual.log.name)
		}
	}
	return offsets
}

// String describes the place: rank, node, time and line.
func (p Place) String() string {
	text := ""
	if p.Rank != nil {
		text += "rank " + strconv.Itoa(*p.Rank) + ", "
	}
	if p.Node != "" {
		text += p.Node + ", "
	}
	if p.After {
		text += "after "
	}
	if p.Time != "" {
		text += p.Time + ", "
	}
	return text + p.Log + ":" + strconv.Itoa(p.Line)
}
