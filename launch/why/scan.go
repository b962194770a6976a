package why

import (
	"encoding/json"
	"regexp"
	"strings"

	"github.com/dsbuild/dsbuild/internal/ui"
)

// Limits of a scan.
const (
	maxStreams = 4096 // ranks that are told apart in one log
	maxText    = 400  // bytes of a kept line
	chainLines = 20   // lines after an exception that still belong to its message
	survived   = 20   // lines of progress after which an error did not end the job
)

// Hit is the place of a sign in a log.
type Hit struct {
	Sign  *Sign
	Line  int
	Rank  int // -1: unknown
	Node  string
	Text  string
	Code  string // the last line of the program's own code in the traceback
	Count int    // how often the sign occurred

	when     moment
	exact    bool // the line itself has the time
	labelled bool // Rank is only a number before the line
	warning  bool // of a program that continued
	progress int  // of the scanner
}

// Scanner looks for signs in one log.
type Scanner struct {
	// Rank is the rank that wrote the log, or -1 if unknown or several.
	Rank int

	table    *signTable
	line     int
	progress int
	clock    string // the beginning of the newest line with a time
	clockAt  int    // its line
	first    moment
	block    failure // of torchrun's list of failures
	root     failure // the first of them, by its time
	labels   int     // lines with a number before them, as of srun --label
	others   int     // lines without one, since the first with one
	streams  map[origin]*stream
	watch    map[int]collective
	hits     int
}

// failure is a failure in torchrun's list.
type failure struct {
	origin
	exit  string // the exit code; a signal's is negative
	first bool   // Root Cause
}

// stream is the part of a log that one process wrote.
type stream struct {
	origin
	hits map[*Sign]*Hit
	// The state of a traceback.
	open    int    // the line where it began, if any
	began   int    // the line where the first of its chain began
	chain   string // how the next traceback continues the last exception: duringHandling, or another line
	ignored bool   // the traceback is of an ignored exception
	frame   string // in the program's own code
	raised  *Hit   // the last exception without a known sign
	known   *Sign  // of the last exception
	prefix  string // before the traceback, such as a time
}

// cutPrefix cuts off what is before each line of a traceback: a time, or the name of a process.
func (st *stream) cutPrefix(line string) string {
	n := len(st.prefix)
	if n > 0 && len(line) > n && (line[:n] == st.prefix || hasClock(st.prefix) && hasClock(line[:n])) {
		return line[n:]
	}
	return line
}

// NewScanner returns a scanner for the log of a rank. rank is -1 if unknown or several.
func NewScanner(rank int) *Scanner {
	return &Scanner{Rank: rank, table: readTable(), streams: map[origin]*stream{}, watch: map[int]collective{}, block: failure{origin: origin{rank: -1}}}
}

// Add adds the next line. Of a line with carriage returns, such as a progress bar, each state is read.
// A line that is a JSON object, such as a container engine's, is read for the text in it.
func (s *Scanner) Add(line string) {
	s.line++
	if !strings.HasPrefix(line, `{"`) {
		s.addPart(line)
		return
	}
	var entry struct{ Log, Message, Msg, Time, Timestamp, TS any }
	if err := json.Unmarshal([]byte(line), &entry); err != nil {
		s.addPart(line)
		return
	}
	for _, at := range []any{entry.Time, entry.Timestamp, entry.TS} {
		if text, ok := at.(string); ok && hasClock(text) {
			s.addPart(text)
		}
	}
	found := false
	for _, message := range []any{entry.Log, entry.Message, entry.Msg} {
		if text, ok := message.(string); ok {
			found = true
			for part := range strings.SplitSeq(text, "\n") {
				s.addPart(part)
			}
		}
	}
	if !found { // an object with other text
		s.addPart(line)
	}
}

func (s *Scanner) addPart(line string) {
	for state := range strings.SplitSeq(line, "\r") {
		if state = ui.Clean(state); strings.TrimSpace(state) != "" {
			s.addState(state)
		}
	}
}

var (
	exception = regexp.MustCompile(`^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Timeout|Failure|Expired|Iteration|NotFound)(?:: |:?$)`)
	// An exception with any name, or one of the few with a small letter: socket.gaierror, struct.error.
	isAny    = regexp.MustCompile(`^(?:(?:[A-Za-z_]\w*\.)+[A-Z]\w*|socket\.(?:gaierror|herror|timeout)|[a-z]\w*\.error)(?:: |:?$)`)
	training = regexp.MustCompile(`(?i)(?:\b(?:loss|steps?|iter|iteration|epoch)\b['"]?\W{0,3}\d|\d(?:it/s|s/it))`)
	// Warnings have W of glog, WARNING of logging, or a category of Python's warnings. NCCL WARN is an error.
	warns   = regexp.MustCompile(`(?:^|[\[ ])W(?:\d{3,4})? |\bWARNING\b|Warning: `)
	library = regexp.MustCompile(`/(?:site|dist)-packages/|/lib(?:64)?/python|<frozen|<string>`)
)

// duringHandling begins the line before an exception that a program raised while it handled another.
const duringHandling = "During handling of the above exception"

func (s *Scanner) addState(line string) {
	if hasClock(line) {
		s.clock, s.clockAt = strings.Clone(head(line)), s.line
		if s.first.text == "" {
			s.first = parseMoment(line)
		}
	}
	from, rest := splitOrigin(line)
	if from.labelled {
		s.labels++
	} else if s.labels > 0 {
		s.others++
	}
	st := s.streamOf(from)
	rest = st.cutPrefix(rest)
	var sign *Sign
	if st.open == 0 || !strings.HasPrefix(rest, "    ") { // in a traceback: not the program's code
		sign = s.table.find(rest)
	}
	s.followTraceback(st, rest, sign)
	if sign != nil {
		s.note(st, sign, rest)
	}
	s.readBlock(rest)
	if s.hits > 0 && st.open == 0 && s.isProgress(rest) {
		s.progress++
	}
}

func (s *Scanner) streamOf(from origin) *stream {
	if s.streams[from] == nil && len(s.streams) >= maxStreams {
		from = origin{rank: -1}
	}
	st := s.streams[from]
	if st == nil {
		st = &stream{origin: from, hits: map[*Sign]*Hit{}}
		s.streams[from] = st
	}
	return st
}

// isProgress reports whether a line shows that training continues.
func (s *Scanner) isProgress(line string) bool {
	for _, word := range []string{"loss", "step", "iter", "poch", "it/s", "s/it"} {
		if strings.Contains(line, word) {
			return training.MatchString(line)
		}
	}
	return false
}

// followTraceback reads the tracebacks of a stream and records their exceptions without a sign.
func (s *Scanner) followTraceback(st *stream, line string, sign *Sign) {
	begin := strings.Index(line, "Traceback (most recent call last)")
	switch {
	case begin >= 0 || strings.HasPrefix(line, "╰─"):
		st.open, st.frame = s.line, ""
		if original := strings.HasPrefix(line, "Original Traceback"); !original && 0 < begin && begin < headLen {
			st.prefix = line[:begin]
		} else if original { // of a data loader's worker, below the exception that repeats it
			st.chain = line
		}
		if st.chain == "" {
			st.raised, st.known, st.began = nil, nil, s.line
		}
		return
	case strings.HasPrefix(line, "Exception ignored in"):
		st.ignored = true
		return
	case strings.HasPrefix(line, duringHandling):
		st.chain = duringHandling
		return
	case strings.HasPrefix(line, "The above exception was the direct cause"):
		st.chain = line
		return
	}
	if strings.HasPrefix(strings.TrimLeft(line, " "), "File \"") {
		m := ownFrame.FindStringSubmatch(line)
		if m == nil {
			return
		}
		if st.open == 0 {
			st.open = s.line // its beginning is cut off
		}
		if !library.MatchString(m[1]) {
			st.frame = m[1] + ":" + m[2]
		}
		return
	}
	if name, _, _ := strings.Cut(line, ":"); strings.ContainsRune(name, ' ') || !exception.MatchString(line) && (st.open == 0 || !isAny.MatchString(line)) {
		return
	}
	s.endTraceback(st, line, sign)
}

// endTraceback reads the line with the exception, which may have a sign.
func (s *Scanner) endTraceback(st *stream, line string, sign *Sign) {
	inside := st.open > 0
	chain, ignored, frame, handled := st.chain, st.ignored, st.frame, st.known
	st.open, st.chain, st.ignored, st.frame, st.known = 0, "", false, "", sign
	switch {
	case chain == "" || handled == nil:
	case handled.Vague && sign != nil && sign != handled && sign.Class == Cause:
		if h := st.hits[handled]; h != nil && h.Line >= st.began {
			delete(st.hits, handled)
		}
	case chain == duringHandling && handled.Handled && (sign == nil || sign.Class == Cause):
		s.remove(st, st.hits[handled])
	}
	switch {
	case sign != nil || ignored && inside:
		if chain != "" && sign != nil && sign.Class == Cause {
			s.remove(st, st.raised)
		}
		st.raised = nil
	default:
		if chain != "" { // the program raised the last exception of a chain
			s.remove(st, st.raised)
		}
		if st.raised = s.note(st, s.table.exception, line); st.raised.Line == s.line {
			st.raised.Code = frame
		}
	}
}

// remove removes one line from a hit, if any.
func (s *Scanner) remove(st *stream, h *Hit) {
	if h == nil || st.hits[h.Sign] != h {
		return
	}
	if h.Count--; h.Count == 0 {
		delete(st.hits, h.Sign)
	}
}

// note records a sign of a stream. The first place counts, unless the job continued after it.
func (s *Scanner) note(st *stream, sign *Sign, line string) *Hit {
	s.hits++
	if e := st.hits[s.table.exception]; e != nil && sign != s.table.exception && sign.Class == Cause && s.line-e.Line <= chainLines {
		s.remove(st, e) // the sign is in the exception's message
	}
	warning := sign.Class == Cause && !sign.Warns && warns.MatchString(line)
	h := st.hits[sign]
	if h != nil && s.progress-h.progress < survived && (warning || !h.warning) {
		h.Count++
		if h.Node == "" && s.line-h.Line <= 3 { // srun names the node of what slurmstepd reports
			at := origin{rank: h.Rank}
			at.searchOrigin(line)
			h.Node = at.node
		}
		if sign.Class == End && s.block.first && s.block.rank >= 0 && (h.Rank < 0 || h.labelled) {
			h.Rank, h.Node, h.labelled = s.block.rank, s.block.node, false // torchrun's list has the rank of its first line
		}
		return h
	}
	at := st.origin
	if sign.Class != Cause && s.block.rank >= 0 && strings.HasPrefix(strings.TrimSpace(line), "exitcode") {
		at = s.block.origin
	}
	at.searchOrigin(line)
	if at.rank < 0 {
		at.rank = s.Rank
	}
	h = &Hit{Sign: sign, Line: s.line, Rank: at.rank, Node: at.node, Text: ui.Shorten(strings.TrimSpace(line), maxText), Count: 1, warning: warning, progress: s.progress}
	h.when = parseMoment(s.clock)
	h.exact, h.labelled = s.clockAt == s.line, at.labelled
	st.hits[sign] = h
	return h
}

var (
	blockLine = regexp.MustCompile(`^\s+(rank|host|exitcode)\s+: (\S+)`)
	timedOut  = regexp.MustCompile(`\[Rank (\d+)\] Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d+), OpType=(\w+)`)
)

// readBlock reads what helps explain signs: torchrun's list of failures, and the collectives that timed out.
func (s *Scanner) readBlock(line string) {
	if strings.HasPrefix(line, "Root Cause (first observed failure)") {
		s.block = failure{origin: origin{rank: -1}, first: true}
	}
	if strings.Contains(line, "  : ") {
		s.readFailure(blockLine.FindStringSubmatch(line))
	}
	if !strings.Contains(line, "Watchdog caught") {
		return
	}
	if m := timedOut.FindStringSubmatch(line); m != nil && len(s.watch) < maxStreams {
		if rank := atoi(m[1]); s.watch[rank].op == "" {
			s.watch[rank] = collective{atoi(m[2]), m[3]}
		}
	}
}

// readFailure reads a line of torchrun's list of failures: the host, the rank and the exit code, in this order.
func (s *Scanner) readFailure(m []string) {
	switch {
	case m == nil:
	case m[1] == "host":
		s.block = failure{origin: origin{rank: -1, node: m[2]}, first: s.block.first}
	case m[1] == "rank":
		s.block.rank = atoi(m[2])
	case s.block.first && s.root.exit == "":
		s.block.exit = m[2]
		s.root, s.block.first = s.block, false
	}
}

// Cause returns the hit that explains the others in this log, or nil.
func (s *Scanner) Cause() *Hit {
	var best *Hit
	for _, h := range s.all() {
		if h.warning {
			continue
		}
		if best == nil || h.Sign.Class.order() < best.Sign.Class.order() ||
			h.Sign.Class == best.Sign.Class && h.Line < best.Line {
			best = h
		}
	}
	return best
}

// Sign returns the sign of Cause, or nil. A nil Scanner has no sign.
func (s *Scanner) Sign() *Sign {
	if s == nil {
		return nil
	}
	if h := s.Cause(); h != nil {
		return h.Sign
	}
	return nil
}

// all returns the hits that the job did not survive. A number before a line is a rank if it is before most lines: a
// compiler or a script writes the number of a line there.
func (s *Scanner) all() (hits []*Hit) {
	for _, st := range s.streams {
		for _, h := range st.hits {
			if s.progress-h.progress >= survived {
				continue
			}
			if h.labelled && (s.labels == 1 || s.labels < s.others) {
				unknown := *h
				unknown.Rank = s.Rank
				h = &unknown
			}
			hits = append(hits, h)
		}
	}
	return hits
}
