package pipeline

import (
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/wheel"
)

// A site whose mirror does not have nvcc for CUDA 12 is told before anything is built, and that CUDA 13 needs none. dsbuild asks
// for engines, and the script that downloads the package for builds on the machine itself.
func TestNvccOutOfReach(t *testing.T) {
	t.Parallel()
	asked := 0
	mirror := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked++; !strings.HasPrefix(r.URL.Path, "/there/debian/pool/non-free/n/nvidia-cuda-toolkit/nvidia-cuda-toolkit_12.4.131~") {
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(mirror.Close)
	nvcc, err := filepath.Abs("../dockerfiles/nvcc.py")
	if err != nil {
		t.Fatal(err)
	}
	both, one, none := planFor(t, wheel.Request{}, Source{}, Base{}), planFor(t, wheel.Request{CUDA: "12"}, Source{}, Base{}), planFor(t, wheel.Request{CUDA: "13"}, Source{}, Base{})
	for name, c := range map[string]struct {
		plan       *Plan
		path       string
		fails      bool
		suggests13 bool
	}{
		"both": {both, "/nowhere", true, true}, "only CUDA 12": {one, "/nowhere", true, false}, "only CUDA 13": {none, "/nowhere", false, false},
		"there": {both, "/there", false, false},
	} {
		network, err := NewNetwork(NetworkOptions{}, func(name string) string {
			return map[string]string{aptMirror: mirror.URL + c.path}[name]
		})
		if err != nil {
			t.Fatal(err)
		}
		err = network.CheckNvcc(t.Context(), c.plan)
		if (err != nil) != c.fails || c.fails && (fault.ExitCode(err) != fault.Usage || strings.Contains(fault.Hint(err), "--cuda 13") != c.suggests13 || !strings.Contains(fault.Hint(err), "--nvcc-deb")) {
			t.Errorf("%s: %v, hint %q", name, err, fault.Hint(err))
		}
		if c.plan == none {
			continue
		}
		script := exec.Command(python3(t), nvcc, "check")
		script.Env = []string{aptMirror + "=" + mirror.URL + c.path}
		if out, err := script.CombinedOutput(); (err != nil) != c.fails || c.fails && !strings.Contains(string(out), "HTTP Error 404") {
			t.Errorf("%s: the script: %v, %s", name, err, out)
		}
	}
	if asked != 6 {
		t.Errorf("the mirror was asked %d times, want 6", asked)
	}
}
