package envdeploy_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/envdeploy"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheelindex"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// native adds a package with machine code to the index.
func (s *site) native(t *testing.T, name, begin, library string, imports ...wheeltest.Import) {
	t.Helper()
	s.Add(t, wheelindex.Wheel{Name: name, Version: "1.0", Tag: "cp311-cp311-manylinux_2_17_x86_64", Files: map[string]string{
		name + "/__init__.py": begin, name + "/" + library: wheeltest.Library(t, imports...),
	}})
}

// libraries adds a package with libraries that need others.
func (s *site) libraries(t *testing.T, name string, needs map[string]string) {
	t.Helper()
	files := map[string]string{name + "/__init__.py": ""}
	for library, of := range needs {
		files[name+"/"+library] = wheeltest.Library(t, wheeltest.Import{Function: "malloc", Library: of})
	}
	s.Add(t, wheelindex.Wheel{Name: name, Version: "1.0", Tag: "cp311-cp311-manylinux_2_17_x86_64", Files: files})
}

const module = "_c.cpython-311-x86_64-linux-gnu.so"

// Before the switch a node loads the machine code of every package. What cannot be loaded there refuses the environment; what a
// node without MPI and GPU lacks, and a part of a package that no import needs, is a note.
func TestPackagesAreLoadedBeforeTheSwitch(t *testing.T) {
	t.Parallel()
	x := newSite(t)
	x.native(t, "overmpi", "", module, wheeltest.Import{Function: "MPI_Init", Library: "libmpi.so.12"})
	x.native(t, "overgpu", "import ctypes, os\nctypes.CDLL(os.path.join(os.path.dirname(__file__), '"+module+"'))\n", module,
		wheeltest.Import{Function: "cuInit", Library: "libcuda.so.1"})
	x.native(t, "optional", "", module, wheeltest.Import{Function: "pool", Library: "libnowhere-pool.so.12"})
	x.native(t, "plugin", "", "libplugin.so", wheeltest.Import{Function: "of_the_program_that_loads_it"})
	// Libraries that differ in a number are alternatives.
	x.libraries(t, "codec", map[string]string{"libcodec4.so": "libnowhere-av.so.56", "libcodec5.so": "libnowhere-av.so.57"})
	x.libraries(t, "builds", map[string]string{"libof11.so": "libnowhere-rt.so.11", "libof12.so": "libc.so.6", "librocm6.so": "libamdhip64.so.6", "librocm7.so": "libamdhip64.so.7"})
	h, s := host(t, "gpu1", sshtest.Options{})
	l, files := x.lock(t, "name: train\npython: 3.11\nrequirements: [overmpi, overgpu, optional, plugin, codec, builds]\n")
	opt := options(t, l, files, []*sshtest.Server{s}, h)
	var said bytes.Buffer
	opt.Reporter = ui.New(&said, ui.Options{})
	r := run(t, t.Context(), opt)
	if r.Err() != nil || r.Nodes[0].Status != report.OK {
		t.Fatalf("%v: want OK, with notes", r.Err())
	}
	for _, want := range []string{
		"overmpi: ", "libmpi.so.12", "overgpu: ", "libcuda.so.1", "optional: ", "libnowhere-pool.so.12",
		"codec: codec/libcodec5.so and 1 like it cannot be loaded: libnowhere-av.so.57: ",
	} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("no note has %q:\n%s", want, said.String())
		}
	}
	if strings.Contains(said.String(), "plugin: ") || strings.Contains(said.String(), "builds: ") {
		t.Errorf("a plugin gets its symbols from the program that loads it, and one of several builds suffices: no note\n%s", said.String())
	}
	before := current(t, s)

	x.native(t, "unfinished", "", module, wheeltest.Import{Function: "nowhere"})
	x.native(t, "lacking", "import ctypes, os\nctypes.CDLL(os.path.join(os.path.dirname(__file__), '"+module+"'))\n", module,
		wheeltest.Import{Function: "f", Library: "libnowhere.so.1"})
	x.native(t, "oftorch", "", "libops.so", wheeltest.Import{Function: "_ZN3c105ErrorC1Ev"})
	x.native(t, "crashing", "import os\nos.kill(os.getpid(), 11)\n", module)
	x.native(t, "wordy", "raise RuntimeError('Could not load libwordy: ' + 300 * 'trace ' + 'libnowhere-av.so.57: cannot open shared object file: No')\n", module)
	x.Add(t, wheelindex.Wheel{Name: "untagged", Version: "1.0", Files: map[string]string{
		"untagged/" + module: wheeltest.Library(t, wheeltest.Import{Function: "untagged_symbol"}),
	}})
	x.native(t, "mpi", "", module, wheeltest.Import{Function: "MPI_Init", Library: "libmpi.so.12"})
	l, files = x.lock(t, "name: train\npython: 3.11\nrequirements: [unfinished, lacking, oftorch, crashing, wordy, untagged, mpi, torch]\n")
	r = run(t, t.Context(), options(t, l, files, []*sshtest.Server{s}, h))
	n := r.Nodes[0]
	if n.Status != report.Failed || n.Step != "verify" || n.Hint == "" || current(t, s) != before {
		t.Errorf("%s at %s, current is %s, was %s: want a failed verify and the old environment", n.Status, n.Step, current(t, s), before)
	}
	for _, want := range []string{
		"undefined symbol: nowhere", "libnowhere.so.1: cannot open shared object file", "undefined symbol: _ZN3c105ErrorC1Ev",
		"crashing: import crashing: killed by signal 11", "wordy: import wordy: RuntimeError: Could not load libwordy",
		"undefined symbol: untagged_symbol", "trace ... libnowhere-av.so.57: cannot open shared object file",
	} {
		if !strings.Contains(n.Error, want) {
			t.Errorf("%q: want %q", n.Error, want)
		}
	}
	if strings.Contains(n.Error, "mpi: ") {
		t.Errorf("%q: a node without MPI is no error", n.Error)
	}
}

// A wheel of an index is compared with the nodes by what its files show, whatever its name promises.
func TestContentOfIndexWheelsDecides(t *testing.T) {
	t.Parallel()
	x := newSite(t)
	x.native(t, "toonew", "", module, wheeltest.Import{Function: "f", Library: "libc.so.6", Version: "GLIBC_2.99"})
	h, s := host(t, "gpu1", sshtest.Options{})
	l, files := x.lock(t, "name: train\npython: 3.11\nrequirements: [alpha, toonew]\n")
	d := envdeploy.New(options(t, l, files, []*sshtest.Server{s}, h))
	defer d.Close()
	plan, err := d.Survey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p := plan.Nodes[0]
	if p.Action != change.Refuse || !p.Unfit || p.Hint == "" || !strings.HasPrefix(strings.Join(p.Reasons, "; "), "toonew 1.0: needs glibc 2.99") {
		t.Errorf("%s, %q, hint %q: want a refusal that names toonew and its glibc", p.Action, p.Reasons, p.Hint)
	}
}
