package jobrunner

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

func TestTailOfAStream(t *testing.T) {
	t.Parallel()
	var tl tail
	if got := tl.addText("out", "one\ntw"); !slices.Equal(got, []string{"one"}) || tl.now != "tw" {
		t.Errorf("%q, now %q", got, tl.now)
	}
	// Of an overwritten line only the last state counts, and another stream does not mix with
	// it.
	if got := tl.addText("err", "oops\n"); !slices.Equal(got, []string{"oops"}) {
		t.Errorf("%q", got)
	}
	if got := tl.addText("out", "o\n 10%\r 20%\r"); !slices.Equal(got, []string{"two"}) || strings.TrimSpace(tl.now) != "20%" {
		t.Errorf("%q, now %q", got, tl.now)
	}
	if got := tl.addText("out", " 30%\r\nlast"); !slices.Equal(got, []string{" 30%"}) {
		t.Errorf("%q", got)
	}
	if got := tl.endLines(); !slices.Equal(got, []string{"last"}) {
		t.Errorf("%q", got)
	}
	if got := tl.addText("out", strings.Repeat("x", 3*maxText)); len(got) != 2 || len(got[0]) != maxText {
		t.Errorf("%d lines", len(got))
	}
	for range 100 {
		tl.addText("out", "\nmore")
	}
	if len(tl.lines) != tailLines || len(tl.lines[0]) > tailText+len("…") {
		t.Errorf("%d lines are kept", len(tl.lines))
	}
}

// The output of a failed rank, or its signal, leads to advice; an exception of the program to none.
func TestAdvice(t *testing.T) {
	t.Parallel()
	for said, want := range map[string]string{
		"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB": "smaller micro batch",
		"ModuleNotFoundError: No module named 'transformers'":                    "run 'dsbuild verify inventory.yaml'",
		"OSError: [Errno 28] No space left on device":                            "run 'dsbuild check inventory.yaml --output /shared/out'",
		"/tmp/x/torchrun.sh: line 31: exec: torchrun: not found":                 "set the interpreter with --python",
		"RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.1]:12345": "",
		"ValueError: the batch is empty":                                         "",
	} {
		var tl tail
		tl.addText("out", said+"\n")
		if got := adviceFor(tl.scanner.Sign(), 0); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", said, got, want)
		}
	}
	for signal, want := range map[int]string{9: "'sudo dmesg'", 4: "the CPUs of all nodes", 11: "every op loads", 7: "--shm-size", 15: ""} {
		if got := adviceFor(new(tail).scanner.Sign(), signal); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("signal %d: %q, want %q", signal, got, want)
		}
	}
}

// No output of a machine breaks anything, and its words become harmless.
func FuzzMessages(f *testing.F) {
	f.Add([]byte(`{"rank": {"number": 0, "local": 0, "begun": true}}` + "\n" + `{"out": {"key": "0", "kind": "out", "text": "a\r\u001b[2Jb\n"}}` + "\n" + `{"rank": {"number": 0, "status": 9}}` + "\n" + `{"end": {"code": 1, "left": [3], "reason": "\u001b[2J\n"}}`))
	f.Add([]byte("[1,2]\n{}\n{\"rank\": {\"number\": \"x\"}}\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		c := &jobRun{events: make(chan event, len(said)+1)}
		m := &member{Machine: &Machine{}}
		for line := range bytes.Lines(said) {
			c.receive(m, line) //nolint:errcheck // invalid messages are errors
		}
		close(c.events)
		for e := range c.events {
			if e.Out != nil {
				for _, line := range new(tail).addText(e.Out.Kind, e.Out.Text) {
					if strings.ContainsAny(line, "\x1b\r\n") {
						t.Fatalf("%q", line)
					}
				}
			}
			if e.End == nil {
				continue
			}
			if m.end = *e.End; strings.ContainsAny(m.reasonText(), "\x1b\n") {
				t.Fatalf("%q", m.reasonText())
			}
		}
	})
}
