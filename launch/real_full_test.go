//go:build full

package launch

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// freePort is a port that nothing listens on.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// The rendered script of two nodes with two processes each, and the example, with
// a real JAX: four processes meet, fit a line together, and rank 0 saves it.
func TestFullLaunchJAX(t *testing.T) {
	env := environment(t, "jax==0.10.0", "numpy")
	j, err := New(Request{Kind: JAX, Flags: flagsOf("jax-form=manual", "nodes=2", "gpus=0", "procs=2", "python="+filepath.Join(env, "bin", "python")),
		Command: []string{"example_train.py", "--batch", "64", "--steps", "120", "--save", "line.json"}})
	if err != nil {
		t.Fatal(err)
	}
	files, err := j.Render()
	if err != nil {
		t.Fatal(err)
	}
	s := newStage(t, files)
	port := freePort(t)
	var wait sync.WaitGroup
	for rank := range 2 {
		wait.Go(func() {
			out, log, code := s.run(t, "jax.sh", "MASTER_ADDR=127.0.0.1", "MASTER_PORT="+port, "NODE_RANK="+strconv.Itoa(rank))
			if code != 0 {
				t.Errorf("node %d: code %d\n%s\n%s", rank, code, out, log)
			}
			if saved := strings.Count(out, "saved line.json"); saved != 1-rank {
				t.Errorf("node %d said %d times that it saved:\n%s", rank, saved, out)
			}
		})
	}
	wait.Wait()
	text, err := os.ReadFile(filepath.Join(s.dir, "line.json"))
	if err != nil {
		t.Fatal(err)
	}
	var line struct {
		W, B      float64
		Processes int
	}
	if err := json.Unmarshal(text, &line); err != nil || line.Processes != 4 || line.W < 2.9 || line.W > 3.1 || line.B < 0.9 || line.B > 1.1 {
		t.Errorf("%v %s", err, text)
	}
}
