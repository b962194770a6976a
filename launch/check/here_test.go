package check

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/launch/jobrunner"
)

// A machine that checks itself says in one line whether it is ready. HOME and PATH stand for a node with a leftover
// configuration of NCCL, and with GPUs that nvidia-smi reports as divided.
func TestHere(t *testing.T) {
	home, bin := t.TempDir(), t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	run := func() *Report {
		begin := time.Now()
		r := Run(t.Context(), Options{
			Options: fleet.Options{
				Reporter: ui.New(io.Discard, ui.Options{}), Dialer: HereDialer{jobrunner.Local{}},
				Hosts: []inventory.Host{{Name: "n1", Node: "n1", Address: "n1"}},
			},
			Here: true, Skip: SkippedHere(),
		})
		if took := time.Since(begin); took > HereTimeout {
			t.Errorf("took %s", took)
		}
		return r
	}
	if line, err := run().Line(); err != nil || !strings.HasPrefix(line, "n1: ready: ") {
		t.Errorf("%q, %v", line, err)
	}
	for path, text := range map[string]string{
		filepath.Join(home, ".nccl.conf"): "# old\nNCCL_SOCKET_IFNAME=eth9\n",
		filepath.Join(bin, "nvidia-smi"):  "#!/bin/sh\ncase $* in *mig.mode*) echo '0, Enabled' ;; *ecc*) echo '0, 3' ;; *) exit 1 ;; esac\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r := run()
	line, err := r.Line()
	var printed strings.Builder
	ui.PrintError(&printed, err, nil)
	if want := "dsbuild: n1: not ready: devices: nvidia-smi: exit status 1\nhint: run nvidia-smi on the node; after a driver update, reboot it\n"; line != "" || fault.ExitCode(err) != fault.Nodes || printed.String() != want {
		t.Errorf("%q, %v, printed\n%s", line, err, &printed)
	}
	var said []string
	for _, f := range r.Nodes[0].Findings {
		said = append(said, f.Text)
	}
	if got, want := strings.Join(said, "\n"), home+"/.nccl.conf sets NCCL_SOCKET_IFNAME=eth9, for every job"; !strings.Contains(got, want) {
		t.Errorf("%q is missing in\n%s", want, got)
	}
}
