package jobrunner

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/node"
)

//go:embed supervise.py
var supervisor string

const (
	// boot reads a length and a program of that length from standard input.
	boot = "import sys;b=sys.stdin.buffer;exec(compile(b.read(int(b.readline())),'dsbuild-job','exec'))"
	// find starts boot with the first Python that exists. The job's own Python may
	// exist only in a container or after a setup line.
	find = `boot=$1; shift; for p; do if command -v "$p" >/dev/null 2>&1; then exec "$p" -I -c "$boot"; fi; done; echo "no Python 3 found" >&2; exit 127`
	// mostLine is the maximum length of a message.
	mostLine = 1 << 20
	// mostNoise is the maximum of bytes from a node besides the output of the job.
	mostNoise = 16 << 20
	// mostWords is the number of bytes to keep of standard error.
	mostWords = 4 << 10
)

// order is the first input of a node's program.
type order struct {
	Files    []orderFile       `json:"files"`
	Run      string            `json:"run"`
	Env      map[string]string `json:"env"`
	First    int               `json:"first"`
	WorkDir  string            `json:"workdir"`
	Script   string            `json:"script"` // "" for a module
	Python   string            `json:"python"`
	Look     bool              `json:"look"` // the program can check that script and interpreter exist
	Port     int               `json:"port"` // must be free; 0: none
	Grace    float64           `json:"grace"`
	Patience float64           `json:"patience"`
}

type orderFile struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// event is a message of a node, or the end of its connection.
type event struct {
	from *member
	at   time.Time

	closed  bool // the connection has ended, because of err
	err     error
	ready   bool
	refused string
	end     *ending
	rank    *process
	key     string // of text: launcher, a rank, or local:N
	kind    string // of text: the stream
	text    string
}

// process reports the start or the end of a rank's process.
type process struct {
	number, local int
	begun         bool
	status        int // the wait status; -1 or 0 if not known
}

// ending says how a node's part ended.
type ending struct {
	Code   int    `json:"code"`
	Signal int    `json:"signal"`
	Left   []int  `json:"left"` // processes that survived SIGKILL
	Reason string `json:"reason"`
}

func (e ending) hasPassed() bool { return e.Code == 0 && e.Signal == 0 && e.Reason == "" }

// reasonText is the node's reason, marked as the node's words; "" for none.
func (e ending) reasonText() string {
	if e.Reason == "" {
		return ""
	}
	return node.Words(e.Reason).Error()
}

// serveMember does all the work for one node.
func (c *jobRun) serveMember(ctx, dialing context.Context, m *member) {
	err := c.runMember(ctx, dialing, m)
	c.events <- event{from: m, at: time.Now(), closed: true, err: err}
}

func (c *jobRun) runMember(ctx, dialing context.Context, m *member) error {
	link, err := m.Open(dialing)
	if err != nil {
		return err
	}
	defer link.Close() //nolint:errcheck // nothing is under way
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	flood := func() { cancel(remote.ErrFlood) }
	said, words := &lines{job: c, from: m, noise: remote.Bound{Most: mostNoise, Over: flood}}, &bytes.Buffer{}
	tooLate := time.AfterFunc(hello, func() { cancel(fmt.Errorf("no answer within %s whether the job can run there", hello)) })
	defer tooLate.Stop()
	said.heard = func() { tooLate.Stop() }
	in, out := io.Pipe()
	defer in.Close() //nolint:errcheck // a pipe of ours
	told := make(chan struct{})
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		c.sendOrders(m, out, told)
	}()
	err = link.Run(ctx, remote.Command{
		Argv:  append([]string{"sh", "-c", find, "sh", boot}, pythonCandidates(m)...),
		About: "run its part of the job " + c.opt.Job.Name,
		Stdin: in, Stdout: said, Stderr: &bounded{words, remote.Bound{Most: mostNoise, Over: flood}},
	})
	in.CloseWithError(io.ErrClosedPipe) //nolint:errcheck // never fails
	close(told)
	<-fed
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	var exit *remote.ExitError
	if errors.As(err, &exit) && words.Len() > 0 {
		all := strings.Split(strings.TrimSpace(ui.Clean(words.String())), "\n")
		return hint.With(fmt.Errorf("dsbuild's program there: %w: %w", err, node.Words(all[len(all)-1])), "Python 3.6 or later must be there")
	}
	if err == nil {
		err = errors.New("the program ended without a last message")
	}
	return err
}

// pythonCandidates are the interpreters for a node's program, in order of preference.
func pythonCandidates(m *member) []string {
	all := []string{"python3", "/usr/libexec/platform-python"}
	if m.Python != "" {
		all = append([]string{m.Python}, all...)
	}
	return all
}

// sendOrders sends orders and signs of life to a node's program.
func (c *jobRun) sendOrders(m *member, to *io.PipeWriter, told <-chan struct{}) {
	defer to.Close() //nolint:errcheck // never fails
	spec, err := json.Marshal(c.orderFor(m))
	if err != nil {
		to.CloseWithError(err) //nolint:errcheck // never fails
		return
	}
	if _, err := fmt.Fprintf(to, "%d\n%s%s\n", len(supervisor), supervisor, spec); err != nil {
		return
	}
	alive := time.NewTicker(c.opt.Patience / 12)
	defer alive.Stop()
	for {
		word := "alive"
		select {
		case word = <-m.orders:
		case <-alive.C:
		case <-told:
			return
		}
		if _, err := io.WriteString(to, word+"\n"); err != nil {
			return
		}
	}
}

// orderFor makes the first input of a node's program.
func (c *jobRun) orderFor(m *member) order {
	j := c.opt.Job
	o := order{
		Run: m.Main, Env: map[string]string{}, First: m.First, WorkDir: j.WorkDir, Script: j.Script, Python: m.Python,
		Grace: c.opt.Grace.Seconds(), Patience: c.opt.Patience.Seconds(),
	}
	if j.Module {
		o.Script = "" // the interpreter finds the module
	}
	maps.Copy(o.Env, c.opt.Env)
	for _, f := range m.Files {
		o.Files = append(o.Files, orderFile{f.Name, f.Text})
	}
	// A setup line may change the folder and PATH; a prefix may change everything.
	o.Look = j.Setup == "" && (m.Host == nil || m.Host.Setup == "" && len(m.Host.ExecPrefix) == 0)
	if m == c.members[0] && len(c.members) > 1 {
		o.Port = j.Port
	}
	return o
}

// lines splits a node's output into messages.
type lines struct {
	job   *jobRun
	from  *member
	heard func() // called at the first answer
	rest  []byte
	skip  bool // skipping the rest of a too long line
	noise remote.Bound
}

// Write implements io.Writer.
func (l *lines) Write(b []byte) (int, error) {
	n := len(b)
	for {
		line, rest, found := bytes.Cut(b, []byte("\n"))
		if !found {
			break
		}
		if l.skip {
			l.noise.Count(len(line) + 1)
		} else if line = append(l.rest, line...); !l.parseMessage(line) {
			l.noise.Count(len(line) + 1)
		}
		l.rest, l.skip, b = l.rest[:0], false, rest
	}
	if !l.skip && len(l.rest)+len(b) > mostLine {
		l.noise.Count(len(l.rest))
		l.rest, l.skip = nil, true
	}
	if l.skip {
		l.noise.Count(len(b))
	} else {
		l.rest = append(l.rest, b...)
	}
	return n, nil
}

// parseMessage queues a line that is a message; it ignores the output of shell startup
// files. It reports whether the message was output of the job, which has no limit.
func (l *lines) parseMessage(line []byte) (output bool) {
	var words []json.RawMessage
	if json.Unmarshal(line, &words) != nil || len(words) < 2 {
		return false
	}
	word := func(i int) (s string) {
		if i < len(words) && json.Unmarshal(words[i], &s) != nil {
			s = string(words[i]) // a number
		}
		return s
	}
	number := func(i int) int {
		n, err := strconv.Atoi(word(i))
		if err != nil {
			return -1
		}
		return n
	}
	e := event{from: l.from, at: time.Now()}
	switch word(0) {
	case "ready":
		l.heard()
		e.ready = true
	case "refused":
		l.heard()
		e.refused = cmp.Or(oneLine(word(1)), "no reason given")
	case "rank":
		e.rank = &process{number: number(1), local: number(2), begun: true}
	case "gone":
		e.rank = &process{number: number(1), status: number(2)}
	case "end":
		e.end = &ending{}
		if json.Unmarshal(words[1], e.end) != nil {
			return false
		}
		e.end.Reason = oneLine(e.end.Reason)
	case "out":
		e.key, e.kind, e.text = word(1), word(2), word(3)
	default:
		return false
	}
	l.job.events <- e
	return e.text != ""
}

// oneLine makes a node's words fit into a message.
func oneLine(s string) string {
	s = ui.OneLine(s)
	return s[:min(len(s), 500)]
}

// bounded keeps the beginning of its input.
type bounded struct {
	to    *bytes.Buffer
	bound remote.Bound
}

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	b.bound.Count(len(p))
	b.to.Write(p[:min(len(p), max(mostWords-b.to.Len(), 0))])
	return len(p), nil
}
