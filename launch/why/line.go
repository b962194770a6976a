package why

import (
	"regexp"
	"strconv"
	"strings"
	"time"
)

// headLen is how many bytes of a line are searched for its rank and its time.
const headLen = 120

func head(line string) string { return line[:min(len(line), headLen)] }

// atoi returns the number that digits stand for. It returns zero if there are none.
func atoi(digits string) int {
	n, _ := strconv.Atoi(digits) //nolint:errcheck // digits, or none
	return n
}

// origin is the rank and the node that wrote a line, if the line contains them.
type origin struct {
	rank     int // -1: unknown
	node     string
	labelled bool // the rank is a number before the line, as of srun --label
}

// container matches Kubernetes' line prefixes: of kubectl logs --prefix and --timestamps, and of container log files.
var container = regexp.MustCompile(`^(?:\[pod/([^/\]]+)/[^\]]*\] )?(?:\d{4}-\d\d-\d\dT[\d:.]+Z (?:std(?:out|err) [FP] )?)?`)

// splitOrigin cuts the mark of the writing process off a line: [rank3]: of torch, [default3]: of torchrun, [1,3]<stderr>:
// of mpirun, 3: of srun --label, and the name of a node before any of them.
func splitOrigin(line string) (origin, string) {
	from := origin{rank: -1}
	if strings.HasPrefix(line, "[pod/") || len(line) > 20 && line[4] == '-' && line[10] == 'T' {
		m := container.FindStringSubmatch(line)
		from.node, line = m[1], line[len(m[0]):]
	}
	h := head(line)
	for _, mark := range []struct{ begins, ends string }{{"[rank", "]:"}, {"[default", "]:"}, {"[1,", ">:"}} {
		at := strings.Index(h, mark.begins)
		if at < 0 {
			continue
		}
		number, _, _ := strings.Cut(h[at+len(mark.begins):], "]")
		n, err := strconv.Atoi(number)
		end := strings.Index(h[at:], mark.ends)
		if err != nil || end < 0 {
			continue
		}
		from.rank = n
		if node, _, ok := strings.Cut(h[:at], ": "); ok && isNode(node) {
			from.node = node
		}
		return from, strings.TrimPrefix(line[at+end+len(mark.ends):], " ")
	}
	mark, rest, ok := strings.Cut(h, ": ")
	if !ok {
		return from, line
	}
	if n, err := strconv.Atoi(strings.TrimSpace(mark)); err == nil && n >= 0 && len(mark) < 6 {
		from.rank, from.labelled = n, true
	} else if isNode(mark) {
		from.node = mark
	} else {
		return from, line
	}
	return from, rest + line[len(h):]
}

// isNode reports whether a word may be a node's name: lower-case letters with a digit, such as gpu01 or ip-10-0-0-1. A
// program's name before an error is not one.
func isNode(word string) bool {
	return !strings.HasPrefix(word, "python") && strings.ContainsAny(word, "0123456789") && strings.Trim(word, "abcdefghijklmnopqrstuvwxyz0123456789.-") == ""
}

var (
	rankWithin = regexp.MustCompile(`(?i)\brank[: ]+(\d{1,6})\b`)
	nodeWithin = regexp.MustCompile(`(?:^| )([\w.-]+):\d+:\d+ \[\d+\] |srun: error: ([a-z]\S*): tasks? |\bON (\S+) CANCELLED|(?:on node|Node failure on) (\S+?):?(?: |$)|^pdsh@\S+: (\S+): `)
	ownFrame   = regexp.MustCompile(`^\s*File "([^"]+)", line (\d+)`)
)

// searchOrigin completes the origin by words within the line.
func (o *origin) searchOrigin(line string) {
	if m := rankWithin.FindStringSubmatch(line); m != nil && o.rank < 0 {
		o.rank = atoi(m[1])
	}
	if m := nodeWithin.FindStringSubmatch(line); m != nil && o.node == "" {
		o.node = strings.Join(m[1:], "") // one of them
	}
}

// moment is the time of a line. Logs often have no year, so times count within one; see overNewYear.
type moment struct {
	text  string // as in the log
	at    time.Time
	dated bool
}

// in returns the time for comparisons. If a job ran over New Year, the first half of the year is the later one.
func (m moment) in(newYear bool) time.Time {
	if newYear && m.at.Month() <= time.June {
		return m.at.AddDate(1, 0, 0)
	}
	return m.at
}

// overNewYear reports whether a job ran over New Year: its logs have times of the last quarter and of the first, and no
// others.
func overNewYear(logs []log) bool {
	quarters := map[time.Month]bool{}
	for _, l := range logs {
		last := parseMoment(l.scanner.clock)
		for _, m := range []moment{l.scanner.first, last} {
			if m.dated {
				quarters[(m.at.Month()-1)/3] = true
			}
		}
	}
	return quarters[0] && quarters[3] && len(quarters) == 2
}

var clock = regexp.MustCompile(`(?:\d{4}[-/](\d\d)[-/](\d\d)[T_ :]|(\d\d)[-/](\d\d)[ T]|[EWIFD](\d{1,2})(\d\d) |` +
	`([JFMASOND][a-z]{2}) +(\d{1,2}) |^\[?)(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?`)

// hasClock reports whether a line may have a time. It is fast, and no progress bar has one.
func hasClock(line string) bool {
	h := head(line)
	for i := 2; i+5 < len(h); i++ {
		if h[i] != ':' || h[i+3] != ':' || !isDigit(h[i-1]) || !isDigit(h[i-2]) || !isDigit(h[i+1]) || !isDigit(h[i+4]) {
			continue
		}
		if before := i - 3; before < 0 || strings.IndexByte(" T_[", h[before]) >= 0 {
			return i+6 >= len(h) || h[i+6] != '<'
		}
	}
	return false
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// parseMoment returns the first time in a line, or the zero moment.
func parseMoment(line string) moment {
	m := clock.FindStringSubmatch(head(line))
	if m == nil {
		return moment{}
	}
	month, day := atoi(m[1]+m[3]+m[5]), atoi(m[2]+m[4]+m[6]+m[8])
	if m[7] != "" {
		name, err := time.Parse("Jan", m[7])
		if err != nil {
			return moment{}
		}
		month = int(name.Month())
	}
	fraction := atoi((m[12] + "000000000")[:9])
	at := time.Date(2000, time.Month(max(month, 1)), max(day, 1), atoi(m[9]), atoi(m[10]), atoi(m[11]), fraction, time.UTC)
	text := strings.TrimLeft(strings.TrimSpace(m[0]), "[")
	if m[5] != "" {
		text = text[1:] // the level of glog
	}
	return moment{text, at, day > 0}
}
