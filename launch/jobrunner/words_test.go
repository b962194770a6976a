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

// The last lines of a failed rank lead to advice.
func TestAdvice(t *testing.T) {
	t.Parallel()
	for said, want := range map[string]string{
		"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB":  "Out of memory",
		"jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory": "Out of memory",
		"torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use": "Port in use",
		"ModuleNotFoundError: No module named 'transformers'":                                                           "Missing module or different version",
		"ImportError: /opt/x.so: undefined symbol: _ZN3c10":                                                             "Missing module or different version",
		"FileNotFoundError: [Errno 2] No such file or directory: '/data/x'":                                             "File missing on some nodes",
		"PermissionError: [Errno 13] Permission denied: '/out'":                                                         "Directory not writable",
		"OSError: [Errno 28] No space left on device":                                                                   "No space",
		"/tmp/x/torchrun.sh: line 31: exec: torchrun: not found":                                                        "Interpreter not found",
		"torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.":        "Nodes cannot reach each other",
		"RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:12345": "",
		"RuntimeError: CUDA error 802: system not yet initialized":                                                      "NVLink switches not ready",
		"NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory":                                         "Cannot lock memory",
		"gpu01:12 [0] transport/net_ib.cc:780 NCCL WARN Call to ibv_reg_mr_iova2 failed with error ENOMEM":              "Cannot lock memory",
		"RuntimeError: CUDA error 801: operation not supported":                                                         "NVLink switches not ready",
		"ibv_create_cq failed: Cannot allocate memory":                                                                  "Cannot lock memory",
		"ValueError: the batch is empty":                                                                                "",
	} {
		got := ""
		for _, s := range Symptoms() {
			if s.Sign.MatchString(said) {
				got = s.Name
				break
			}
		}
		if got != want {
			t.Errorf("%q: %q, want %q", said, got, want)
		}
	}
	if text := adviceFor("", 9, "gpu07"); !strings.Contains(text, "gpu07") {
		t.Error(text)
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
