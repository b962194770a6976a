package jobrunner

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/launch"
	"github.com/dsbuild/dsbuild/launch/why"
)

// The launchers' messages about a failed rank.
var (
	byTorchrun = regexp.MustCompile(`failed \(exitcode: (-?\d+)\) local_rank: (\d+) `)
	byJAX      = regexp.MustCompile(`^rank (\d+) ended with exit code (\d+)$`)
)

// verdictOf reads a launcher's message about its ranks.
func (c *jobRun) verdictOf(m *member, line string, e event) {
	if code, local, ok := twoNumbers(byTorchrun, line); ok {
		for _, r := range c.ranks {
			if r.member == m && r.local == local {
				c.noteFailure(r, e.at, max(code, 0), max(-code, 0))
			}
		}
	}
	if number, code, ok := twoNumbers(byJAX, line); ok && c.opt.Job.Kind == launch.JAX {
		if r := c.ranks[number]; r != nil && r.member == m {
			c.noteFailure(r, e.at, code, max(code-128, 0))
		}
	}
}

func twoNumbers(sign *regexp.Regexp, line string) (first, second int, ok bool) {
	said := sign.FindStringSubmatch(line)
	if said == nil {
		return 0, 0, false
	}
	first, err1 := strconv.Atoi(said[1])
	second, err2 := strconv.Atoi(said[2])
	return first, second, err1 == nil && err2 == nil
}

// suspect is a rank or a machine that may have failed first.
type suspect struct {
	Failure
	class int // the lower, the more likely the original failure
	at    time.Time
}

// The classes of suspects.
const (
	byItself    = iota // an external signal, a lost connection, its own error
	becauseOf          // its output reports a lost peer
	wasTold            // it got a signal to end
	leastLikely        // only its end is known
)

// findSuspects lists all failures, the most likely original one first.
func (c *jobRun) findSuspects() []suspect {
	var all []suspect
	blamed := map[*member]bool{}
	for _, n := range slices.Sorted(maps.Keys(c.ranks)) {
		r := c.ranks[n]
		if r.failed.IsZero() && (r.gone.IsZero() || r.member.state == over && r.member.end.hasPassed()) {
			continue
		}
		s := suspect{at: r.failed}
		s.Failure = Failure{
			Node: r.member.name(),
			Rank: &r.number,
			Last: r.tail.lines,
			Log:  c.logPath(c.book.rankFile(r.number)),
		}
		if s.at.IsZero() {
			s.at = r.gone
		}
		sign := r.tail.scanner.Sign()
		s.Why, s.code = howEnded(r.code, r.signal)
		switch signal := signals[r.signal]; {
		case r.failed.IsZero():
			s.class, s.Why = leastLikely, "ended"
		case signal == "TERM" || signal == "INT" || signal == "HUP":
			s.class = wasTold
		case signal == "KILL":
		case followsPeers(sign):
			s.class = becauseOf
		}
		s.Hint = adviceFor(sign, r.signal)
		blamed[r.member] = blamed[r.member] || s.class <= becauseOf
		all = append(all, s)
	}
	for _, m := range c.members {
		failed := m.state == lost || m.state == refused || m.state == over && !m.end.hasPassed() && !c.wasStopped(m)
		if failed && !blamed[m] {
			all = append(all, c.suspectNode(m))
		}
	}
	if c.wasRunning() {
		slices.SortStableFunc(all, func(a, b suspect) int {
			return cmp.Or(cmp.Compare(a.class, b.class), a.at.Compare(b.at))
		})
	}
	return all
}

// wasStopped reports whether a node ended its part on request. A node with its own reason may
// report it after others notice.
func (c *jobRun) wasStopped(m *member) bool {
	return c.phase == stopping && !m.at.Before(c.changed) && m.end.Reason == ""
}

func (c *jobRun) suspectNode(m *member) suspect {
	s := suspect{Failure: Failure{Node: m.name(), Last: m.launcher.lines}, at: m.at}
	sign := m.launcher.scanner.Sign()
	switch {
	case m.err != nil:
		s.Why, s.Hint = m.err.Error(), cmp.Or(fault.Hint(m.err), adviceFor(why.Find(m.err.Error()), 0))
		if c.opt.WriteHint != nil {
			s.Hint = c.opt.WriteHint(s.Hint, m.name())
		}
		s.Last = nil
	case m.end.Reason != "":
		s.Why = m.reasonText()
	default:
		s.Why, s.code = howEnded(m.end.Code, m.end.Signal)
		s.Why = "launcher exited: " + s.Why
		s.Hint = adviceFor(sign, m.end.Signal)
		if followsPeers(sign) {
			s.class = becauseOf
		}
	}
	if len(s.Last) > 0 {
		s.Log = c.logPath(launcherFile(m))
	}
	return s
}

// followsPeers reports whether this sign is only a consequence of another rank's failure.
func followsPeers(sign *why.Sign) bool {
	return sign != nil && (sign.Class == why.Peer || sign.Class == why.Follow)
}

// adviceFor returns advice for a sign in the output of a process, or for the signal that ended it. It returns "" for
// exceptions of the program.
func adviceFor(sign *why.Sign, signal int) string {
	if sign == nil || sign.Class == why.Follow {
		sign = why.BySignal(signal)
	}
	return sign.Advice()
}

// signals are Linux's signals, regardless of the local system.
var signals = map[int]string{
	1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 5: "TRAP", 6: "ABRT", 7: "BUS", 8: "FPE", 9: "KILL",
	10: "USR1", 11: "SEGV", 12: "USR2", 13: "PIPE", 14: "ALRM", 15: "TERM", 24: "XCPU", 25: "XFSZ", 31: "SYS",
}

// howEnded returns how a process ended, and its exit code in a shell.
func howEnded(code, signal int) (string, int) {
	if signal != 0 {
		return fmt.Sprintf("killed by signal %d (%s)", signal, cmp.Or(signals[signal], "?")), 128 + signal
	}
	return fmt.Sprintf("exit code %d", code), code
}
