package ui_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/creack/pty"

	"github.com/dsbuild/dsbuild/internal/ui"
)

func TestPlainLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		c := ui.New(&out, ui.Options{})
		defer c.Close()
		c.Note("building %s", "a wheel")
		c.Warn("no cache")
		toolchain := c.Step("toolchain")
		toolchain.End(ui.Cached, "")
		c.Step("smoke").End(ui.Skipped, "no GPU")
		compile := c.Step("compile")
		compile.Log("[1/9] first")
		time.Sleep(12 * time.Second)
		compile.End(ui.Failed, "gcc: exit status 1")
		compile.End(ui.Done, "again")
		want := "building a wheel\nwarning: no cache\n" +
			"• toolchain  cached\n- smoke  skipped  no GPU\n" +
			"✗ compile  12.0s  gcc: exit status 1\n"
		if got := out.String(); got != want {
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		}
	})
}

func TestSignsOfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		c := ui.New(&out, ui.Options{ASCII: true})
		s := c.Step("compile")
		time.Sleep(30*time.Second + time.Millisecond)
		s.Log("[7/9] cpu_adam.o\n")
		time.Sleep(35 * time.Second)
		s.End(ui.Done, "")
		time.Sleep(time.Hour)
		c.Close()
		want := "still running: compile, 30.0s\n" +
			"still running: compile, 1m00s: [7/9] cpu_adam.o\n" +
			"+ compile  1m05s\n"
		if got := out.String(); got != want {
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		}
	})
}

// The jobs of a step's output are counted over its parts, with a guess of the time; other output is no progress.
func TestJobsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		c := ui.New(&out, ui.Options{ASCII: true})
		s := c.Step("compile")
		s.Log("40 sources, 2 parallel jobs")
		time.Sleep(30*time.Second + time.Millisecond)
		s.Log("job 21 of 40 of cu12: core 1, 0.00 to 30.00 s, CPU 21.0 s, 912 MiB: csrc/a.cu") // 20 from the cache
		s.Log("nanobind: reference counting")
		time.Sleep(30 * time.Second)
		s.Log("job 1 of 20 of cu13: core 2, 0.00 to 50.00 s, CPU 21.0 s, 912 MiB: csrc/b.cu")
		s.Log("job 22 of 40 of cu12: core 1, 30.00 to 60.00 s, CPU 21.0 s, 912 MiB: link c_op.so")
		s.Log("No CUDA runtime is found")
		time.Sleep(30 * time.Second)
		s.End(ui.Done, "")
		c.Close()
		want := "still running: compile, 30.0s: 40 sources, 2 parallel jobs\n" +
			"still running: compile, 1m00s: 21 of 40 jobs, last csrc/a.cu\n" +
			"still running: compile, 1m30s: 23 of 60 jobs, about 18 min left, last link c_op.so\n" +
			"+ compile  1m30s\n"
		if got := out.String(); got != want {
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		}
	})
}

// A guess of the time is counted down where nothing moves, and ends.
func TestTimeLeftOfABar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		c := ui.New(&out, ui.Options{})
		b := c.Bar("deploying", 3)
		time.Sleep(59 * time.Second)
		b.Add(1)
		time.Sleep(170 * time.Second)
		b.Close()
		c.Close()
		want := "deploying: 0%\ndeploying: 33%, about 2 min left\ndeploying: 33%, about 1 min left\n" +
			strings.Repeat("deploying: 33%\n", 4) + "deploying: 33% in 3m49s\n"
		if got := out.String(); got != want {
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		}
	})
}

func TestPlainBar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		c := ui.New(&out, ui.Options{})
		defer c.Close()
		b := c.Bar("sending", 1000)
		b.Add(110)
		b.Describe("slowest gpu07")
		b.Add(20)
		time.Sleep(6 * time.Second) // a line after 5 s
		b.Add(900)                  // more than the total: 100 %
		b.Close()
		b.Close()
		want := "sending: 13%  slowest gpu07\nsending: 100% in 6.0s  slowest gpu07\n"
		if got := out.String(); got != want {
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		}
	})
}

// TestPlainBarIsSeldom: a bar that moves all the time prints lines less and less often.
func TestPlainBarIsSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		c := ui.New(&out, ui.Options{})
		defer c.Close()
		b := c.Bar("deploying", 1000)
		b.Describe("7 of 9 nodes\nslowest gpu1: put 3s\n1 failed: gpu2")
		for range 240 {
			b.Add(4)
			time.Sleep(time.Second)
		}
		if got := strings.Count(out.String(), "\n"); got != 9 { // after 5, 15, 35, 65, 95 … 215 s
			t.Errorf("%d lines in 4 minutes:\n%s", got, out.String())
		}
		if want := "deploying: 2%, about 3 min left  7 of 9 nodes; slowest gpu1: put 3s; 1 failed: gpu2\n"; !strings.HasPrefix(out.String(), want) {
			t.Errorf("got:\n%s\nwant:\n%s", out.String(), want)
		}
		b.Close()
	})
}

func TestBarOfUnknownTotal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		c := ui.New(&out, ui.Options{})
		defer c.Close()
		b := c.Bar("waiting", 0)
		b.Add(7)
		time.Sleep(31 * time.Second)
		b.Close()
		if got, want := out.String(), "waiting: 30.0s\nwaiting: 31.0s\n"; got != want {
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		}
	})
}

func TestHostileOutputIsCleaned(t *testing.T) {
	var out bytes.Buffer
	c := ui.New(&out, ui.Options{})
	c.Note("node says %s", "\x1b]0;owned\x07\x1b[2Jhi")
	c.Warn("%s", "a\rb")
	s := c.Step("st\x1b[31mep")
	s.Log("a line of a container \x1b]0;owned\x07")
	s.End(ui.Cached, "x\ny\x9b1A")
	c.Close()
	if strings.ContainsAny(out.String(), "\x1b\r\x07") {
		t.Errorf("control characters came through: %q", out.String())
	}
	if want := "• step  cached  x y"; !strings.Contains(out.String(), want) {
		t.Errorf("no %q in %q", want, out.String())
	}
}

// Any goroutine may call the methods; each line arrives once and unbroken.
func TestConcurrentUse(t *testing.T) {
	for _, terminal := range []bool{false, true} {
		var out bytes.Buffer
		c := ui.New(&out, ui.Options{Terminal: terminal})
		bar := c.Bar("all", 800)
		var group sync.WaitGroup
		for i := range 8 {
			group.Go(func() {
				s := c.Step(fmt.Sprintf("step %d", i))
				for j := range 100 {
					s.Log(fmt.Sprint(j))
					bar.Add(1)
					bar.Describe("at work")
				}
				c.Note("note %d", i)
				s.End(ui.Done, "")
			})
		}
		group.Wait()
		bar.Close()
		c.Close()
		c.Step("after the end").End(ui.Skipped, "") // must not panic
		want := []string{"all: 100% in TIME  at work", "- after the end  skipped"}
		for i := range 8 {
			want = append(want, fmt.Sprintf("note %d", i), fmt.Sprintf("✓ step %d  TIME", i))
		}
		got := onScreen(out.String())
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("terminal: %t: printed\n%s\nwant\n%s", terminal, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// onScreen returns the lines that output leaves on a terminal, with TIME for each duration.
func onScreen(output string) []string {
	lines := []string{""}
	for output != "" {
		last := len(lines) - 1
		switch {
		case strings.HasPrefix(output, "\r\x1b[K"):
			lines[last], output = "", output[len("\r\x1b[K"):]
		case strings.HasPrefix(output, "\x1b[A\x1b[K"):
			lines, output = append(lines[:last-1], ""), output[len("\x1b[A\x1b[K"):]
		case output[0] == '\n':
			lines, output = append(lines, ""), output[1:]
		default:
			lines[last], output = lines[last]+output[:1], output[1:]
		}
	}
	durations := regexp.MustCompile(`\d+\.\ds|\d+m\d\ds`)
	for i := range lines {
		lines[i] = durations.ReplaceAllString(lines[i], "TIME")
	}
	return lines[:len(lines)-1] // after the last line break
}

// openTerminal returns the two ends of a real pseudo terminal, and a function that returns
// everything written to it so far, once want is there.
func openTerminal(t *testing.T) (tty *os.File, await func(want string) string) {
	t.Helper()
	ptmx, tty, err := pty.Open()
	if err != nil {
		t.Fatalf("no pseudo terminal: %v", err)
	}
	if err := pty.Setsize(ptmx, &pty.Winsize{Rows: 6, Cols: 40}); err != nil {
		t.Fatal(err)
	}
	chunks := make(chan []byte)
	go func() {
		defer close(chunks)
		for {
			chunk := make([]byte, 4096)
			n, err := ptmx.Read(chunk)
			if err != nil {
				return
			}
			chunks <- chunk[:n]
		}
	}()
	t.Cleanup(func() {
		tty.Close()
		for range chunks { // drained, so that the reader ends
		}
		ptmx.Close()
	})
	var all strings.Builder
	return tty, func(want string) string {
		t.Helper()
		timeout := time.After(time.Minute)
		for !strings.Contains(all.String(), want) {
			select {
			case chunk := <-chunks:
				all.Write(chunk)
			case <-timeout:
				t.Fatalf("%q did not appear; the terminal got %q", want, all.String())
			}
		}
		return all.String()
	}
}

func TestLiveView(t *testing.T) {
	t.Setenv("NO_COLOR", "")
	t.Setenv("TERM", "xterm")
	t.Setenv("LC_ALL", "C.UTF-8")
	tty, await := openTerminal(t)
	c := ui.New(tty, ui.FromEnvironment(tty))
	t.Cleanup(c.Close)
	s := c.Step("compile")
	await("⠙ compile  0.") // the spinner turns by itself
	s.Log("[3/9] " + strings.Repeat("long ", 50))
	await("compile  0.")
	for line := range strings.SplitSeq(await("..."), "\r") {
		if _, shown, ok := strings.Cut(line, "\x1b[K"); ok && len([]rune(shown)) > 39 {
			t.Errorf("wider than the terminal: %q", shown)
		}
	}
	b := c.Bar("sending", 200)
	b.Add(100)
	b.Describe("slowest gpu07")
	await("sending  50%")
	c.Note("a note in between")
	await("a note in between\r\n")
	for i := range 9 {
		defer c.Step(fmt.Sprintf("more %d", i)).End(ui.Done, "")
	}
	await("and 7 more") // six rows: five lines, the last one for the rest
	b.Close()
	s.End(ui.Done, "3 ops")
	got := await("3 ops")
	if want := "\x1b[32m✓\x1b[0m compile  "; !strings.Contains(got, want) {
		t.Errorf("no %q in %q", want, got)
	}
	c.Close()
}

// TestBarWithLinesBelow: the further lines of a bar's text stand below it, as far as there is
// room, and disappear with it.
func TestBarWithLinesBelow(t *testing.T) {
	t.Setenv("NO_COLOR", "")
	t.Setenv("TERM", "xterm")
	t.Setenv("LC_ALL", "C.UTF-8")
	tty, await := openTerminal(t)
	c := ui.New(tty, ui.FromEnvironment(tty))
	t.Cleanup(c.Close)
	b := c.Bar("deploying", 200)
	b.Describe("\nslowest gpu07: \x1b[2Jput 3m05s\n" + "2 failed: gpu[" + strings.Repeat("01,", 50) + "02]\n3\n4\n5\n6")
	got := await("\r\n  4")
	if !strings.Contains(got, "\r\n  slowest gpu07: put 3m05s\r\n  2 failed: gpu[01,") || strings.Contains(got, "  5") {
		t.Errorf("%q", got)
	}
	b.Describe("")
	b.Close()
	c.Note("end")
	if got := await("end\r\n"); !strings.Contains(got, strings.Repeat("\x1b[A\x1b[K", 4)) {
		t.Errorf("the lines below were not taken away: %q", got)
	}
}

func TestNoColorStillRedraws(t *testing.T) {
	t.Setenv("NO_COLOR", "1")
	t.Setenv("TERM", "xterm")
	t.Setenv("LC_ALL", "C")
	tty, await := openTerminal(t)
	c := ui.New(tty, ui.FromEnvironment(tty))
	t.Cleanup(c.Close)
	s := c.Step("compile")
	await("/ compile")
	s.End(ui.Failed, "")
	got := await("x compile")
	if strings.Contains(got, "\x1b[3") {
		t.Errorf("colour in spite of NO_COLOR: %q", got)
	}
	if !strings.Contains(got, "\r\x1b[K") {
		t.Errorf("no redrawing: %q", got)
	}
	c.Close()
}

func TestFromEnvironment(t *testing.T) {
	t.Setenv("LC_ALL", "")
	t.Setenv("LC_CTYPE", "")
	for locale, ascii := range map[string]bool{"": true, "C": true, "de_DE.UTF-8": false, "C.utf8": false} {
		t.Setenv("LANG", locale)
		if got := ui.FromEnvironment(io.Discard); got.ASCII != ascii || got.Terminal || got.Color {
			t.Errorf("LANG=%q: %+v", locale, got)
		}
	}
	tty, _ := openTerminal(t)
	t.Setenv("TERM", "dumb")
	if ui.FromEnvironment(tty).Terminal {
		t.Error("a dumb terminal cannot redraw")
	}
}

// The flags of the command line decide over the terminal and its variables.
func TestSettings(t *testing.T) {
	t.Parallel()
	run := func(opts ui.Options, s ui.Settings) string {
		var out strings.Builder
		c := ui.New(&out, opts)
		c.Configure(s)
		c.Note("note")
		c.Detail("detail")
		c.Warn("warn")
		step := c.Step("step")
		step.Log("line")
		step.End(ui.Skipped, "")
		c.Bar("bar", 10).Close()
		c.Close()
		return out.String()
	}
	for name, c := range map[string]struct {
		opts      ui.Options
		settings  ui.Settings
		has, lack []string
	}{
		"default":     {ui.Options{}, ui.Settings{}, []string{"note\n", "warning: warn\n", "- step", "bar: 0%"}, []string{"detail", "line"}},
		"quiet":       {ui.Options{Terminal: true}, ui.Settings{Quiet: true}, []string{"warning: warn\n"}, []string{"note", "step", "bar"}},
		"verbose":     {ui.Options{}, ui.Settings{Verbose: true}, []string{"note\n", "detail\n", "step: line\n", "- step"}, nil},
		"no progress": {ui.Options{Terminal: true}, ui.Settings{NoProgress: true}, []string{"note\n", "- step"}, []string{"bar", "\r"}},
		"always":      {ui.Options{}, ui.Settings{Color: ui.ColorAlways}, []string{"\x1b[33mwarning:\x1b[0m warn\n"}, nil},
		"never":       {ui.Options{Color: true}, ui.Settings{Color: ui.ColorNever}, []string{"warning: warn\n"}, []string{"\x1b[3"}},
		"auto":        {ui.Options{Color: true}, ui.Settings{Color: ui.ColorAuto}, []string{"\x1b[33mwarning:\x1b[0m warn\n"}, nil},
	} {
		got := run(c.opts, c.settings)
		for _, text := range c.has {
			if !strings.Contains(got, text) {
				t.Errorf("%s: no %q in %q", name, text, got)
			}
		}
		for _, text := range c.lack {
			if strings.Contains(got, text) {
				t.Errorf("%s: %q in %q", name, text, got)
			}
		}
	}
}
