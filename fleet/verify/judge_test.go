package verify

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/wheel"
)

// alike are nodes with the same DeepSpeed, whose files are as RECORD lists them.
func alike(n int) []*nodeState {
	r := &run{}
	for i := range n {
		s := &nodeState{
			Node: &fleet.Node{
				Host: inventory.Host{Name: fmt.Sprintf("gpu%02d", i+1), Python: "/opt/env/bin/python"}, Status: report.OK,
				Facts: &node.Facts{
					Python: "3.11.2", Executable: "/opt/env/bin/python", Prefix: "/opt/env", Tag: "cp311",
					SitePackages: "/opt/env/lib", Writable: true, FreeBytes: 1 << 40, FreeTmpBytes: 1 << 40, Torch: "2.15.0", TorchCUDA: "13.2",
					DeepSpeed: &node.Installed{Version: "0.19.8", SHA256: strings.Repeat("a", 64)},
				},
			},
			run: r,
			installed: &installation{
				Version: "0.19.8",
				Noted:   &noted{Wheel: "deepspeed.whl", SHA256: strings.Repeat("a", 64), Version: "0.19.8", Same: true},
			},
		}
		s.holds(map[string]string{"deepspeed/__init__.py": "11", "deepspeed/ops/adam.so": "22"})
		r.nodes = append(r.nodes, s)
	}
	return r.nodes
}

// builtName is the file name of a build of DeepSpeed 0.19.8, by its build tag.
func builtName(tag string) string {
	return "deepspeed-0.19.8-" + tag + "-py3-none-manylinux_2_28_x86_64.whl"
}

// has makes a build the one that a node has.
func (n *nodeState) has(tag string) {
	n.installed.Manifest = json.RawMessage(`{"name": "` + builtName(tag) + `"}`)
}

// byAnotherTool makes another tool the one that installed a node's DeepSpeed.
func (n *nodeState) byAnotherTool() { n.Facts.DeepSpeed.SHA256, n.installed.Noted = "", nil }

// holds makes these the files of a node's DeepSpeed.
func (n *nodeState) holds(files map[string]string) {
	n.installed.contents = &contents{files: files, sum: fileList(files).digest()}
}

// judge judges nodes, and returns each of their differences and notes.
func judge(t *testing.T, all []*nodeState, files map[string]map[string]string) string {
	t.Helper()
	tables, err := compat.NewTables()
	if err != nil {
		t.Fatal(err)
	}
	compareNodes(tables, all, files)
	var said []string
	for _, s := range all {
		for _, d := range s.differs {
			said = append(said, s.Host.Name+": "+d.what)
		}
		for _, r := range s.notes {
			said = append(said, s.Host.Name+" (note): "+r)
		}
	}
	return strings.Join(said, "\n")
}

func TestJudge(t *testing.T) {
	t.Parallel()
	five := func(first ...string) paths { return paths{len(first), first} }
	for name, c := range map[string]struct {
		nodes  int
		change func(all []*nodeState)
		want   string
	}{
		"alike": {3, func([]*nodeState) {}, ""},
		"no Python": {3, func(all []*nodeState) {
			all[1].Facts.Python, all[1].Facts.Missing, all[1].installed, all[1].Facts.DeepSpeed = "", []string{"python"}, nil, nil
		}, "gpu02: no usable Python"},
		"no DeepSpeed": {3, func(all []*nodeState) { all[0].installed, all[0].Facts.DeepSpeed = nil, nil }, "gpu01: no DeepSpeed in the environment of /opt/env/bin/python"},
		"in progress":  {2, func(all []*nodeState) { all[0].Facts.Unfinished, all[0].Facts.Leftovers = true, true }, "gpu01: a deploy is in progress or was interrupted"},
		"leftovers":    {2, func(all []*nodeState) { all[0].Facts.Leftovers = true }, "gpu01 (note): files of a running or interrupted deploy are in /opt/env/lib/.dsbuild; the next deploy removes them"},
		"altered":      {3, func(all []*nodeState) { all[2].installed.mismatched = five("deepspeed/a.py") }, "gpu03: deepspeed/a.py does not match RECORD"},
		"missing":      {3, func(all []*nodeState) { all[2].installed.missing = five("deepspeed/a.py", "deepspeed/b.py") }, "gpu03: deepspeed/a.py, deepspeed/b.py are missing"},
		"unlisted":     {3, func(all []*nodeState) { all[2].installed.unlisted = five("deepspeed/a.so") }, "gpu03: deepspeed/a.so is code that is not in RECORD"},
		"links":        {3, func(all []*nodeState) { all[2].installed.Links = paths{Count: 2} }, "gpu03: 2 files are links to directories that are not in RECORD"},
		"byte code":    {3, func(all []*nodeState) { all[2].installed.Code = paths{Count: 1} }, "gpu03: a file is byte code that does not match its module"},
		"many": {3, func(all []*nodeState) {
			all[2].installed.mismatched = paths{900, []string{"a", "b", "c", "d", "e", "f"}}
		}, "gpu03: a, b, c, d, e and 895 more do not match RECORD"},
		"litter": {3, func(all []*nodeState) { all[2].installed.Litter = five("deepspeed/note.txt") }, "gpu03 (note): deepspeed/note.txt is in DeepSpeed's directory, but not in RECORD"},
		"conda": {
			2, func(all []*nodeState) { all[1].Facts.CondaRecord = "deepspeed-0.18.5-py311_0.json" },
			"gpu02 (note): conda keeps its own record of DeepSpeed (conda-meta/deepspeed-0.18.5-py311_0.json): conda remove and conda update would delete files that dsbuild installs",
		},
		"bare": {2, func(all []*nodeState) { all[1].installed.Bare = true }, "gpu02 (note): installed DeepSpeed has no RECORD: its files are only compared with other nodes'"},
		"another torch": {
			4, func(all []*nodeState) { all[3].Facts.Torch = "2.14.0" },
			"gpu04: torch 2.14.0, but 3 of 4 nodes have 2.15.0",
		},
		"no majority": {
			2, func(all []*nodeState) { all[1].Facts.TorchCUDA = "" },
			"gpu01: CUDA: no majority: 13.2 on gpu01, none on gpu02\ngpu02: CUDA: no majority: 13.2 on gpu01, none on gpu02",
		},
		"another version": {3, func(all []*nodeState) {
			all[0].Facts.DeepSpeed.Version, all[0].installed.Version, all[0].installed.Noted.Version = "0.19.7", "0.19.7", "0.19.7"
		}, "gpu01: DeepSpeed 0.19.7, but 2 of 3 nodes have 0.19.8"},
		"another wheel": {3, func(all []*nodeState) { all[1].Facts.DeepSpeed.SHA256 = strings.Repeat("b", 64) }, "gpu02: wheel bbbbbbbbbbbb, but 2 of 3 nodes have aaaaaaaaaaaa"},
		"files against RECORD": {3, func(all []*nodeState) {
			all[1].holds(map[string]string{"deepspeed/__init__.py": "11", "deepspeed/ops/adam.so": "99"})
		}, "gpu02: deepspeed/ops/adam.so differs from 2 of 3 nodes with this version, regardless of RECORD"},
		"files without majority": {2, func(all []*nodeState) {
			all[1].holds(map[string]string{
				"deepspeed/__init__.py": "11", "deepspeed/ops/adam.so": "99", "deepspeed/new.py": "1",
			})
		}, "gpu01: deepspeed/new.py, deepspeed/ops/adam.so differ from gpu02 with this version, regardless of RECORD: no majority\n" +
			"gpu02: deepspeed/new.py, deepspeed/ops/adam.so differ from gpu01 with this version, regardless of RECORD: no majority"},
		"the damaged have no vote": {3, func(all []*nodeState) {
			for _, s := range all[:2] {
				s.holds(map[string]string{"deepspeed/__init__.py": "00", "deepspeed/ops/adam.so": "22"})
				s.installed.mismatched = five("deepspeed/__init__.py")
			}
		}, "gpu01: deepspeed/__init__.py does not match RECORD\ngpu02: deepspeed/__init__.py does not match RECORD"},
		"another tool installed it": {
			2, func(all []*nodeState) { all[0].installed.Noted.Version, all[0].installed.Noted.Same = "0.19.7", false },
			"gpu01 (note): dsbuild installed DeepSpeed 0.19.7, which another tool has replaced",
		},
		"another RECORD": {
			2, func(all []*nodeState) { all[0].installed.Noted.Same = false },
			"gpu01: RECORD has changed since dsbuild installed deepspeed.whl",
		},
		"another build": {3, func(all []*nodeState) {
			for i, s := range all {
				s.has([]string{"1_aaaaaaaa", "1_aaaaaaaa", "2_bbbbbbbb"}[i])
			}
			all[2].Facts.DeepSpeed.SHA256 = strings.Repeat("b", 64)
			all[2].holds(map[string]string{"deepspeed/__init__.py": "33"})
		}, "gpu03: build " + builtName("2_bbbbbbbb") + " (sha256 bbbbbbbbbbbb), but 2 of 3 nodes have " + builtName("1_aaaaaaaa") + " (sha256 aaaaaaaaaaaa)"},
		"two builds": {2, func(all []*nodeState) {
			all[0].has("1_aaaaaaaa")
			all[1].has("2_bbbbbbbb")
			all[1].byAnotherTool()
		}, "gpu01: build: no majority: " + builtName("1_aaaaaaaa") + " (sha256 aaaaaaaaaaaa) on gpu01, " + builtName("2_bbbbbbbb") + " on gpu02\n" +
			"gpu02: build: no majority: " + builtName("1_aaaaaaaa") + " (sha256 aaaaaaaaaaaa) on gpu01, " + builtName("2_bbbbbbbb") + " on gpu02\n" +
			"gpu02 (note): installed by another tool: " + builtName("2_bbbbbbbb")},
		"the package index's build": {3, func(all []*nodeState) {
			all[0].has("1_aaaaaaaa")
			all[1].has("1_aaaaaaaa")
			all[2].byAnotherTool()
			all[2].holds(map[string]string{"deepspeed/__init__.py": "33"})
		}, "gpu03: build from another tool, but 2 of 3 nodes have " + builtName("1_aaaaaaaa") + " (sha256 aaaaaaaaaaaa)"},
		"the same build by pip": {2, func(all []*nodeState) {
			all[0].has("1_aaaaaaaa")
			all[1].has("1_aaaaaaaa")
			all[1].byAnotherTool()
		}, "gpu02 (note): installed by another tool: " + builtName("1_aaaaaaaa")},
		"another machine type": {2, func(all []*nodeState) {
			all[0].Facts.Platform, all[1].Facts.Platform = "linux_x86_64", "linux_aarch64"
			all[1].Facts.DeepSpeed.SHA256 = strings.Repeat("b", 64)
			all[1].holds(map[string]string{"deepspeed/__init__.py": "11", "deepspeed/ops/adam.so": "33"})
		}, ""},
		"replaced by another build": {1, func(all []*nodeState) {
			all[0].installed.Noted.Wheel, all[0].installed.Noted.Same = builtName("1_aaaaaaaa"), false
			all[0].has("2_bbbbbbbb")
		}, "gpu01 (note): dsbuild installed " + builtName("1_aaaaaaaa") + ", which another tool has replaced by " + builtName("2_bbbbbbbb")},
		"replaced by the package index's": {1, func(all []*nodeState) {
			all[0].installed.Noted.Wheel, all[0].installed.Noted.Same = builtName("1_aaaaaaaa"), false
		}, "gpu01 (note): dsbuild installed " + builtName("1_aaaaaaaa") + ", which another tool has replaced by a build that is not dsbuild's"},
		"companions": {3, func(all []*nodeState) {
			for i, s := range all {
				s.Facts.Dists = map[string]string{"numpy": "2.3.2"}
				s.Facts.ExtraWheels = map[string]string{"numpy": strings.Repeat(string("aab"[i]), 64)}
			}
		}, "gpu03: numpy, wheel bbbbbbbbbbbb, but 2 of 3 nodes have aaaaaaaaaaaa"},
		"a name with escapes": {
			2, func(all []*nodeState) { all[0].installed.mismatched = five("deepspeed/\x1b[2J\n; rm -rf") },
			`gpu01: "deepspeed/ ; rm -rf" does not match RECORD`,
		},
	} {
		all := alike(c.nodes)
		c.change(all)
		if got := judge(t, all, nil); got != c.want {
			t.Errorf("%s:\n%s\nwant:\n%s", name, got, c.want)
		}
	}
}

// A node is compared with the wheel that it should run, whoever installed it.
func TestJudgeByWheel(t *testing.T) {
	t.Parallel()
	sum := strings.Repeat("a", 64)
	m := wheel.Manifest{Name: builtName("2_bbbbbbbb"), Version: "0.19.8", SHA256: sum, PlanDigest: strings.Repeat("b", 64)}
	w := &wheel.Loaded{Version: "0.19.8", Manifest: m}
	files := map[string]map[string]string{sum: {"deepspeed/__init__.py": "11", "deepspeed/ops/adam.so": "22"}}
	for name, c := range map[string]struct {
		change func(s *nodeState)
		want   string
	}{
		"it": {func(*nodeState) {}, ""},
		"another": {func(s *nodeState) {
			s.Facts.DeepSpeed.Version, s.installed.Version, s.installed.Noted.Version = "0.18.0", "0.18.0", "0.18.0"
		}, "gpu01: runs DeepSpeed 0.18.0 (sha256 aaaaaaaaaaaa), not NAME (sha256 aaaaaaaaaaaa)"},
		"unfit": {func(s *nodeState) { s.unfit = []string{"it needs glibc 2.40"} }, "gpu01: NAME is incompatible: it needs glibc 2.40"},
		"none chosen": {
			func(s *nodeState) { s.wheel, s.unfit = nil, []string{"no wheel fits it: a, b"} },
			"gpu01: cannot choose a wheel: no wheel fits it: a, b",
		},
		"altered": {func(s *nodeState) {
			s.holds(map[string]string{"deepspeed/__init__.py": "00", "deepspeed/ops/adam.so": "22"})
		}, "gpu01: deepspeed/__init__.py does not match the wheel"},
		"by another tool": {
			func(s *nodeState) { s.byAnotherTool() },
			"gpu01 (note): not installed by dsbuild, but all files match NAME",
		},
		"by another tool, altered": {func(s *nodeState) {
			s.byAnotherTool()
			s.has("2_bbbbbbbb")
			s.holds(map[string]string{"deepspeed/__init__.py": "00", "deepspeed/ops/adam.so": "22"})
		}, "gpu01: deepspeed/__init__.py does not match the wheel"},
		"another build by another tool": {func(s *nodeState) {
			s.byAnotherTool()
			s.has("1_aaaaaaaa")
			s.holds(map[string]string{"deepspeed/__init__.py": "00"})
		}, "gpu01: runs " + builtName("1_aaaaaaaa") + ", not NAME (sha256 aaaaaaaaaaaa)"},
		"the package index's build": {func(s *nodeState) {
			s.byAnotherTool()
			s.holds(map[string]string{"deepspeed/__init__.py": "00"})
		}, "gpu01: runs DeepSpeed 0.19.8 from another tool, not NAME (sha256 aaaaaaaaaaaa)"},
		"again by another tool": {func(s *nodeState) { s.installed.Noted.Same = false }, "gpu01 (note): reinstalled by another tool"},
		"another build": {
			func(s *nodeState) { s.Facts.DeepSpeed.SHA256 = strings.Repeat("b", 64) },
			"gpu01: runs DeepSpeed 0.19.8 (sha256 bbbbbbbbbbbb), not NAME (sha256 aaaaaaaaaaaa)",
		},
	} {
		all := alike(1)
		all[0].wheel = w
		c.change(all[0])
		if got, want := judge(t, all, files), strings.ReplaceAll(c.want, "NAME", m.Name); got != want {
			t.Errorf("%s:\n%s\nwant:\n%s", name, got, want)
		}
	}
}

// Nodes that do not run their wheel have no vote about what is usual.
func TestStraysHaveNoVote(t *testing.T) {
	t.Parallel()
	all := alike(5)
	for _, s := range all[:3] {
		s.installed, s.Facts.DeepSpeed, s.Facts.Torch = nil, nil, "2.10.0"
	}
	got := judge(t, all, nil)
	for i := range 3 {
		if want := fmt.Sprintf("gpu%02d: torch 2.10.0, but 2 of 5 nodes have 2.15.0", i+1); !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "gpu04") || strings.Contains(got, "gpu05") {
		t.Error(got)
	}
}

// A list compares RECORD's digests with those of the files.
func TestFileListCompare(t *testing.T) {
	t.Parallel()
	got := fileList{
		"good":     "sha256=AQID 010203",
		"padded":   "sha256=AQIDBA== 01020304",
		"altered":  "sha256=AQID ffffff",
		"missing":  "sha256=AQID ",
		"gone":     "",
		"unlisted": " 0a0b",
		"other":    "sha512=AQID 010203 77",
		"nonsense": "sha256=!!! 010203",
		"no sum":   "sha256 010203",
	}.compare()
	if !slices.Equal(got.mismatched, []string{"altered", "no sum", "nonsense"}) ||
		!slices.Equal(got.missing, []string{"gone", "missing"}) || !slices.Equal(got.unlisted, []string{"unlisted"}) {
		t.Errorf("%+v", got)
	}
	if got.files["other"] != "77" || got.files["good"] != "010203" || len(got.files) != 7 {
		t.Errorf("%v", got.files)
	}
}

// A node that names the digest of another's list gets that one; no node can put its own list under
// another digest.
func TestNodeCannotReplaceList(t *testing.T) {
	t.Parallel()
	var lists fileLists
	good := fileList{"deepspeed/a.py": "sha256=AQID 010203"}
	first := lists.intern(good.digest(), good)
	bad := fileList{"deepspeed/a.py": "sha256=AQID ffffff"}
	if lists.intern(good.digest(), bad) == first {
		t.Error("a list is taken for another by the digest that the node claims")
	}
	if lists.intern(good.digest(), nil) != first || lists.intern("", good) != first {
		t.Error("a known list is not found again")
	}
	if got := lists.intern("unknown", nil); got == first || len(got.files) != 0 {
		t.Errorf("an unknown digest gives %v", got.files)
	}
	for i := range 2 * maxKnown {
		lists.intern("", fileList{fmt.Sprint(i): ""})
	}
	if known := lists.digests(); len(known) != maxKnown || !slices.IsSorted(known) {
		t.Errorf("%d digests are sent to nodes", len(known))
	}
}

// Messages of a node become findings; its words cannot pass for dsbuild's.
func TestMessagesOfNode(t *testing.T) {
	t.Parallel()
	s := alike(1)[0]
	s.installed, s.run = nil, &run{}
	for _, text := range []string{
		`{"wrong": "two of them\u001b[31m\nare there", "advice": "several"}`,
		`{"wrong": "it is bad", "advice": "rm -rf /"}`,
		`{"op": "cpu_adam"}`,
		`{"broken": "op cpu_adam: no symbol", "advice": "torch-differs"}`,
		`{"note": "a note"}`,
		`{"looked": {"version": "0.19.8", "files": {"deepspeed/a.py": "sha256=AQID ffffff"}, "others": {"../../../bin/ds": "sha256=AQID ", "x/METADATA": "sha256=AQID 00"}, "conda": true}}`,
		`{"done": true}`,
	} {
		if err := s.handleMessage(json.RawMessage(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.handleMessage(json.RawMessage(`[]`)); err == nil {
		t.Error("an answer of another shape is taken")
	}
	want := []nodeFinding{
		{what: "node reported: two of them are there", advice: "several"},
		{what: "node reported: it is bad", advice: "rm -rf /"},
	}
	if !slices.Equal(s.differs, want) || len(s.broken) != 1 || s.broken[0].advice != "torch-differs" || !s.program.done ||
		s.program.op != "" {
		t.Errorf("%+v\n%+v", s.findings, s.program)
	}
	l := s.installed
	if !slices.Equal(l.mismatched.First, []string{"deepspeed/a.py", "x/METADATA"}) ||
		!slices.Equal(l.missing.First, []string{"../../../bin/ds"}) || l.unlisted.Count != 0 {
		t.Errorf("%+v", l)
	}
	s.setStatus()
	hint, _ := s.withWheel(node.HintFor("several", "", node.Facts{}))
	const said = "node reported: two of them are there; node reported: it is bad; node reported: op cpu_adam"
	if s.Status != report.Differs || !strings.HasPrefix(s.Err.Error(), said) || fault.Hint(s.Err) != hint {
		t.Errorf("%s %v", s.Status, s.Err)
	}
	if f := s.Facts.DeepSpeed; f.Intact ||
		!slices.Equal(f.Altered, []string{"deepspeed/a.py", "x/METADATA", "../../../bin/ds"}) {
		t.Errorf("%+v", f)
	}
}

// A node with nothing but ops that fail has failed; one without findings is ok.
func TestStatusOfFindings(t *testing.T) {
	t.Parallel()
	s := alike(1)[0]
	s.setStatus()
	if s.Status != report.OK || s.Err != nil || !s.Facts.DeepSpeed.Intact || s.runs == nil ||
		s.runs.Name != "deepspeed.whl" {
		t.Errorf("%s %v %+v", s.Status, s.Err, s.runs)
	}
	s.broken = []nodeFinding{{what: "op x fails"}, {what: "op y fails", hint: "look"}}
	s.setStatus()
	if s.Status != report.Failed || s.Err.Error() != "op x fails; op y fails" || fault.Hint(s.Err) != "look" {
		t.Errorf("%s %v", s.Status, s.Err)
	}
	s.end(t.Context(), errors.New("lost"))
	if len(s.broken) != 0 {
		t.Error("findings of a node that was lost are kept")
	}
}

// An op that ends the program is named; an illegal instruction means another CPU.
func TestLoadError(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err        error
		doing      string
		needs      string
		text, hint string
	}{
		{&remote.ExitError{Signal: "ILL"}, "loading", "x86-64-v4", "op cpu_adam: killed by an illegal instruction", "the wheel (x86-64-v4) needs a newer CPU than this node's (x86-64-v3)"},
		{&remote.ExitError{Code: 132}, "computing", "", "op cpu_adam: killed by an illegal instruction", "the wheel (unknown CPU level) needs a newer CPU than this node's (x86-64-v3)"},
		{&remote.ExitError{Signal: "SEGV"}, "computing", "x86-64-v3", "computing op cpu_adam: ", ""},
		{errors.New("lost"), "loading", "x86-64-v3", "loading op cpu_adam: lost", ""},
	} {
		err := loadError(c.err, c.doing, "cpu_adam", c.needs, "x86-64-v3")
		if !strings.HasPrefix(err.Error(), c.text) || fault.Hint(err) != c.hint {
			t.Errorf("%v: %v, hint %q", c.err, err, fault.Hint(err))
		}
	}
	if err := loadError(errors.New("lost"), "loading", "a\nb; \x1b[2J", "", ""); strings.ContainsAny(err.Error(), "\n\x1b") {
		t.Errorf("%q", err)
	}
}

func TestAcceleratorOfNodeWithoutGPU(t *testing.T) {
	t.Parallel()
	gpu := []node.GPU{{Name: "A100", Arch: "8.0"}}
	for _, c := range []struct {
		m     wheel.Manifest
		facts node.Facts
		set   bool
	}{
		{wheel.Manifest{CUDA: "13.2"}, node.Facts{GPUs: gpu}, false},
		{wheel.Manifest{CUDA: "13.2"}, node.Facts{}, true},
		{wheel.Manifest{CUDA: "13.2"}, node.Facts{GPUs: gpu, GPUsHidden: true}, true},
		{wheel.Manifest{TorchABI: &wheel.TorchABI{Stable: true}}, node.Facts{}, true}, // several CUDAs, or none
		{wheel.Manifest{}, node.Facts{}, false},
	} {
		if got := acceleratorEnv(forCUDA(c.m), c.facts)["DS_ACCELERATOR"] == "cuda"; got != c.set {
			t.Errorf("%+v with %+v: %v", c.m, c.facts, got)
		}
	}
}

// The wheel that most nodes run is advised only for nodes on which it runs.
func TestUsualWheelRunsThere(t *testing.T) {
	t.Parallel()
	all := alike(3)
	tables, err := compat.NewTables()
	if err != nil {
		t.Fatal(err)
	}
	all[0].run.tables = tables
	const usual = "deepspeed-0.19.8-py3-none-any.whl"
	for _, n := range all {
		n.installed.Noted.Wheel = usual
		n.installed.Manifest = json.RawMessage(`{"version": "0.19.8", "python": "3.11", "torch": "2.15.0", "cuda": "13.2"}`)
	}
	all[2].installed, all[2].Facts.DeepSpeed = nil, nil
	for torch, want := range map[string]bool{"2.15.0": true, "2.14.0": false} {
		all[2].Facts.Torch = torch
		if hint, _ := all[2].withWheel(deployHint()); strings.Contains(hint, usual) != want {
			t.Errorf("torch %s: %q; want the wheel for torch 2.15 in it: %v", torch, hint, want)
		}
	}
}
