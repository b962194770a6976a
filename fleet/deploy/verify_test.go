package deploy_test

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/wheel"
)

// look verifies, and fails if anything in the environments or in the homes of
// the nodes is not as it was.
func look(t *testing.T, opt deploy.Options, places ...string) *report.Report {
	t.Helper()
	was := trees(t, places)
	r, err := verify.Run(context.Background(), verifyOptions(opt))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range r.Nodes {
		t.Logf("%s: %s at %s, after %v, wheel %q\n  error: %s\n  hint: %s\n  notes: %q", n.Name, n.Status, n.Step, n.After, n.Wheel, n.Error, n.Hint, n.Notes)
	}
	for path, now := range trees(t, places) {
		if was[path] != now {
			t.Errorf("verify wrote: %s was %q, is %q", path, was[path], now)
		}
		delete(was, path)
	}
	for path := range was {
		t.Errorf("verify removed %s", path)
	}
	return r
}

// trees is all that lies in some folders, with mode, time, size and, of DeepSpeed
// and of what dsbuild keeps, content: a real torch has gigabytes.
func trees(t *testing.T, places []string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, place := range places {
		err := filepath.WalkDir(place, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			all[path] = fmt.Sprintf("%s %d", info.Mode(), info.ModTime().UnixNano())
			if info.Mode().IsRegular() {
				all[path] += fmt.Sprintf(" %d", info.Size())
			}
			if info.Mode().IsRegular() && (strings.Contains(path, "deepspeed") || strings.Contains(path, ".dsbuild/")) {
				data, err := os.ReadFile(path)
				all[path] += fmt.Sprintf(" %x", sha256.Sum256(data))
				return err
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// few are some nodes with one wheel, each with an environment of its own.
type few struct {
	envs  []environment
	opt   deploy.Options
	wheel wheel.Loaded
}

// deployed returns n nodes that are copies of one to which dsbuild has deployed a wheel.
// The options are without the wheel.
func deployed(t *testing.T, n int) few {
	t.Helper()
	first, wheels := withInstalled(t, "0.19.8")
	f := few{wheel: wheels[0]}
	var hosts []inventory.Host
	var servers []*sshtest.Server
	for i := range n {
		e := first
		if i > 0 {
			e = first.twin(t, t.TempDir())
		}
		h, s := host(t, fmt.Sprintf("gpu%02d", i+1), e, sshtest.Options{})
		f.envs, hosts, servers = append(f.envs, e), append(hosts, h), append(servers, s)
	}
	f.opt = options(t, nil, servers, hosts...)
	return f
}

func (f few) look(t *testing.T) *report.Report {
	t.Helper()
	var places []string
	for _, e := range f.envs {
		places = append(places, e.dir)
	}
	return look(t, f.opt, places...)
}

func printed(t *testing.T, r *report.Report) string {
	t.Helper()
	var out strings.Builder
	if err := r.Print(&out); err != nil {
		t.Fatal(err)
	}
	t.Log(out.String())
	return out.String()
}

const adam = "deepspeed/ops/cpu_adam_loaded.py"

// differs expects one node to differ for just these reasons, in parts, and all
// others to be ok.
func differs(t *testing.T, r *report.Report, at int, reasons ...string) {
	t.Helper()
	for i, n := range r.Nodes {
		if i != at {
			if n.Status != report.OK || len(n.Differs) > 0 {
				t.Errorf("%s: %s, %q", n.Name, n.Status, n.Differs)
			}
			continue
		}
		if n.Status != report.Differs || len(n.Differs) != len(reasons) || n.Hint == "" {
			t.Errorf("%s: %s, %q, hint %q; want %q", n.Name, n.Status, n.Differs, n.Hint, reasons)
			continue
		}
		for j, want := range reasons {
			if !strings.Contains(n.Differs[j], want) || !strings.Contains(n.Error, want) {
				t.Errorf("%s: %q, want %q", n.Name, n.Differs[j], want)
			}
		}
	}
	if code(r.Err()) != 3 || r.Consistent || r.Summary.Differs != 1 {
		t.Errorf("%v, consistent %v, %+v", r.Err(), r.Consistent, r.Summary)
	}
}

func TestVerifyAgreesAndLeavesNoTrace(t *testing.T) {
	t.Parallel()
	f := deployed(t, 2)
	for _, e := range f.envs { // byte code that a Python would write again
		removeByteCode(t, e.dir)
		e.write(t, "zz.pth", "import zz_at_start\n")
		e.write(t, "zz_at_start.py", "x = 1\n")
	}
	r := f.look(t)
	if r.Err() != nil || !r.Consistent || r.Summary.OK != 2 || len(r.Differences) != 0 || len(r.Wheels) != 1 || r.Wheels[0].SHA256 != f.wheel.Manifest.SHA256 {
		t.Errorf("%v: %+v", r.Err(), r)
	}
	n := r.Nodes[0]
	if n.Changed || n.After == nil || *n.After != *n.Before || n.After.SHA256 != f.wheel.Manifest.SHA256 || n.Wheel != f.wheel.Manifest.Name || n.Step != "verify" {
		t.Errorf("%+v", n)
	}
	if out := printed(t, r); !strings.Contains(out, "2 nodes ok, all equal: deepspeed "+f.wheel.Version) || !strings.Contains(out, "gpu[01-02]  ok ") {
		t.Error(out)
	}
	f.opt.Wheels = []wheel.Loaded{f.wheel}
	f.opt.Verify = verify.LevelFiles
	if r := f.look(t); r.Err() != nil || r.Nodes[1].Wheel != f.wheel.Manifest.Name {
		t.Errorf("%v: %+v", r.Err(), r.Nodes[1])
	}
}

func removeByteCode(t *testing.T, dir string) {
	t.Helper()
	if out, err := exec.Command("find", dir, "-name", "__pycache__", "-prune", "-exec", "rm", "-r", "{}", "+").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// installs is the command of a hint that installs a wheel.
func installs(w wheel.Loaded) string {
	return fault.Command{Do: "deploy", Wheel: &fault.WheelFile{Name: w.Manifest.Name, SHA256: w.Manifest.SHA256}}.String()
}

func TestVerifyNamesNodeAndFile(t *testing.T) {
	t.Parallel()
	f := deployed(t, 3)
	f.envs[1].write(t, adam, "edited = True\n")
	r := f.look(t)
	differs(t, r, 1, adam+" does not match RECORD")
	if n := r.Nodes[1]; n.Facts.DeepSpeed == nil || n.Facts.DeepSpeed.Intact || len(n.Facts.DeepSpeed.Altered) != 1 || !strings.HasSuffix(n.Hint, installs(withWheel(f).Wheels[0])) {
		t.Errorf("%+v, hint %q", n.Facts.DeepSpeed, n.Hint)
	}
	out := printed(t, r)
	if !strings.Contains(out, "\ngpu02: "+adam+" does not match RECORD\n  hint: ") || !strings.HasSuffix(out, "2 of 3 nodes ok, 1 differs\n") {
		t.Error(out)
	}
	if r := run(t, context.Background(), withWheel(f)); r.Err() != nil { // what the hint says
		t.Fatal(r.Err())
	}
	if r := f.look(t); r.Err() != nil {
		t.Error(r.Err())
	}
}

func withWheel(f few) deploy.Options {
	opt := f.opt
	opt.Wheels = []wheel.Loaded{f.wheel}
	return opt
}

// rewrite changes a file of an environment and makes RECORD agree.
func rewrite(t *testing.T, e environment, name, text string) {
	t.Helper()
	e.write(t, name, text)
	records, _ := filepath.Glob(filepath.Join(e.site, "deepspeed-*.dist-info", "RECORD"))
	if len(records) != 1 {
		t.Fatalf("RECORD: %q", records)
	}
	data, err := os.ReadFile(records[0])
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(data), "\n")
	found := false
	for i, line := range lines {
		if strings.HasPrefix(line, name+",") {
			lines[i], found = fmt.Sprintf("%s,sha256=%s,%d", name, written(sha256.New(), text), len(text)), true
		}
	}
	if !found {
		t.Fatalf("%s is not in RECORD", name)
	}
	if err := os.WriteFile(records[0], []byte(strings.Join(lines, "\n")), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestVerifySeesThroughAnEditedRecord(t *testing.T) {
	t.Parallel()
	f := deployed(t, 3)
	rewrite(t, f.envs[2], adam, "edited = True\n")
	noted := "RECORD has changed since dsbuild installed " + f.wheel.Manifest.Name
	differs(t, f.look(t), 2, adam+" differs from 2 of 3 nodes with this version, regardless of RECORD", noted)
	f.opt.Wheels = []wheel.Loaded{f.wheel}
	differs(t, f.look(t), 2, adam+" does not match the wheel", noted)
	// Alone it has nobody to be compared with, but for what dsbuild noted.
	f.opt.Wheels, f.opt.Hosts, f.envs = nil, f.opt.Hosts[2:], f.envs[2:]
	differs(t, f.look(t), 0, noted)
}

func TestVerifyOfFilesMissingAddedAndReplaced(t *testing.T) {
	t.Parallel()
	f := deployed(t, 1)
	e := f.envs[0]
	sos, _ := filepath.Glob(filepath.Join(e.site, "deepspeed/ops/adam/*.so"))
	if len(sos) != 1 {
		t.Fatal(sos)
	}
	so, _ := filepath.Rel(e.site, sos[0])
	e.write(t, so, "\x7fELF of another build")
	for _, name := range []string{"deepspeed/git_version_info.py", "deepspeed/ops/op_builder/__init__.py"} {
		if err := os.Remove(filepath.Join(e.site, name)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 7 {
		e.write(t, fmt.Sprintf("deepspeed/added%d.py", i), "")
	}
	e.write(t, "deepspeed/ops/adam/cpu_adam.py.bak", "old")
	f.opt.Verify = verify.LevelFiles
	r := f.look(t)
	differs(t, r, 0, so+" does not match RECORD", "deepspeed/git_version_info.py, deepspeed/ops/op_builder/__init__.py are missing",
		"deepspeed/added0.py, deepspeed/added1.py, deepspeed/added2.py, deepspeed/added3.py, deepspeed/added4.py and 2 more are code that is not in RECORD")
	if n := r.Nodes[0]; len(n.Notes) != 1 || n.Notes[0] != "deepspeed/ops/adam/cpu_adam.py.bak is in DeepSpeed's directory, but not in RECORD" {
		t.Errorf("notes: %q", n.Notes)
	}
}

// byHand installs a wheel as somebody without dsbuild would.
func byHand(t *testing.T, e environment, path string) {
	t.Helper()
	e.pipInstall(t, quickPip, path)
}

func TestVerifyOfWhatOthersInstalled(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	f := deployed(t, 2)
	e := newEnvironment(t, "2.15.0")
	h, s := host(t, "gpu03", e, sshtest.Options{})
	byHand(t, e, f.wheel.Path)
	f.envs = append(f.envs, e)
	all := options(t, nil, []*sshtest.Server{s}, append(f.opt.Hosts, h)...)
	keys, err := os.ReadFile(f.opt.KnownHosts)
	if err != nil {
		t.Fatal(err)
	}
	more, err := os.ReadFile(all.KnownHosts)
	if err == nil {
		err = os.WriteFile(all.KnownHosts, append(keys, more...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	f.opt = all
	r := f.look(t)
	if r.Err() != nil || r.Nodes[2].Status != report.OK {
		t.Errorf("%v", r.Err())
	}
	f.opt.Wheels = []wheel.Loaded{f.wheel}
	r = f.look(t)
	if r.Err() != nil || len(r.Nodes[2].Notes) != 1 || !strings.Contains(r.Nodes[2].Notes[0], "not installed by dsbuild, but all files match "+f.wheel.Manifest.Name) {
		t.Errorf("%v: %q", r.Err(), r.Nodes[2].Notes)
	}
	e.write(t, adam, "edited = True\n")
	differs(t, f.look(t), 2, adam+" does not match RECORD")
	f.opt.Wheels = nil
	r = f.look(t)
	differs(t, r, 2, adam+" does not match RECORD")
	if !strings.Contains(r.Nodes[2].Hint, "reinstall this DeepSpeed") {
		t.Errorf("hint %q", r.Nodes[2].Hint)
	}
	// A whole RECORD of somebody else's is seen through by comparison alone.
	byHand(t, e, f.wheel.Path)
	rewrite(t, e, adam, "edited = True\n")
	differs(t, f.look(t), 2, adam+" differs from 2 of 3 nodes with this version, regardless of RECORD")
	// Over what dsbuild installed, the same wheel by hand is worth a note where the wheel
	// proves the files. Another node's note does not: that node may lie.
	byHand(t, f.envs[0], f.wheel.Path)
	byHand(t, e, f.wheel.Path)
	differs(t, f.look(t), 0, "RECORD has changed since dsbuild installed "+f.wheel.Manifest.Name)
	f.opt.Wheels = []wheel.Loaded{f.wheel}
	r = f.look(t)
	if r.Err() != nil || !slices.Contains(r.Nodes[0].Notes, "reinstalled by another tool") {
		t.Errorf("%v: %q", r.Err(), r.Nodes[0].Notes)
	}
}

func TestVerifyOfCommands(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t, "2.15.0")
	h, s := host(t, "gpu01", e, sshtest.Options{})
	byHand(t, e, makeWheel(t, t.TempDir(), wheelOptions{}))
	f := few{envs: []environment{e}, opt: options(t, nil, []*sshtest.Server{s}, h)}
	e.write(t, "../../../bin/ds_report", "#!/bin/sh\n")
	differs(t, f.look(t), 0, "../../../bin/ds_report does not match RECORD")
	// conda changes them as it installs.
	infos, _ := filepath.Glob(filepath.Join(e.site, "deepspeed-*.dist-info"))
	rewrite(t, e, filepath.Base(infos[0])+"/INSTALLER", "conda\n")
	if r := f.look(t); r.Err() != nil {
		t.Error(r.Err())
	}
	e.write(t, adam, "edited = True\n")
	if err := os.Remove(filepath.Join(e.dir, "bin", "ds_report")); err != nil {
		t.Fatal(err)
	}
	differs(t, f.look(t), 0, adam+" does not match RECORD", "../../../bin/ds_report is missing")
}

// Paths in quotes, other algorithms, roundabout paths, lines that end as on Windows.
func TestVerifyOfAnUnusualRecord(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t, "2.15.0")
	h, s := host(t, "gpu01", e, sshtest.Options{})
	path := makeWheel(t, t.TempDir(), wheelOptions{})
	byHand(t, e, path)
	f := few{envs: []environment{e}, opt: options(t, nil, []*sshtest.Server{s}, h)}
	infos, _ := filepath.Glob(filepath.Join(e.site, "deepspeed-*.dist-info", "RECORD"))
	data, err := os.ReadFile(infos[0])
	if err != nil {
		t.Fatal(err)
	}
	text := "x = 1\n"
	for name, sum := range map[string]string{
		`"deepspeed/a, b.py"`:     "sha512=" + written(sha512.New(), text),
		"./deepspeed//ops/./c.py": "sha384=" + written(sha512.New384(), text),
		"deepspeed/d.py":          "sha256=" + written(sha256.New(), text) + "=",
	} {
		e.write(t, strings.Trim(name, `"`), text)
		data = fmt.Appendf(data, "%s,%s,%d\n", name, sum, len(text))
	}
	if err := os.WriteFile(infos[0], []byte(strings.ReplaceAll(string(data), "\n", "\r\n")), 0o644); err != nil {
		t.Fatal(err)
	}
	build := "installed by another tool: " + filepath.Base(path)
	if r := f.look(t); r.Err() != nil || !slices.Equal(r.Nodes[0].Notes, []string{build}) {
		t.Errorf("%v, notes %q, want %q", r.Err(), r.Nodes[0].Notes, build)
	}
	for _, name := range []string{"a, b.py", "ops/c.py", "d.py"} {
		e.write(t, "deepspeed/"+name, "edited = True\n")
	}
	differs(t, f.look(t), 0, `"deepspeed/a, b.py", deepspeed/d.py, deepspeed/ops/c.py do not match RECORD`)
	// A line without a digest that can be compared vouches for nothing.
	data = fmt.Append(data, "deepspeed/e.py,,\ndeepspeed/f.py,md5=abc,6\n")
	if err := os.WriteFile(infos[0], data, 0o644); err != nil {
		t.Fatal(err)
	}
	e.write(t, "deepspeed/e.py", text)
	e.write(t, "deepspeed/f.py", text)
	differs(t, f.look(t), 0, "do not match RECORD", "deepspeed/e.py, deepspeed/f.py are code that is not in RECORD")
	if err := os.Truncate(infos[0], 0); err != nil {
		t.Fatal(err)
	}
	differs(t, f.look(t), 0, "more are code that is not in RECORD")
	if err := os.Remove(infos[0]); err != nil {
		t.Fatal(err)
	}
	if r := f.look(t); r.Err() != nil || len(r.Nodes[0].Notes) != 2 || !strings.HasPrefix(r.Nodes[0].Notes[0], "installed DeepSpeed has no RECORD") {
		t.Errorf("%v, notes %q", r.Err(), r.Nodes[0].Notes)
	}
}

// written is a digest of text as RECORD has it.
func written(h hash.Hash, text string) string {
	io.WriteString(h, text) //nolint:errcheck // a hash takes all
	return wheel.RecordDigest(h.Sum(nil))
}

func TestVerifyNamesTheOddEnvironment(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	f := deployed(t, 4)
	f.envs[1].write(t, "torch/version.py", "__version__ = '2.15.1+cu132'\ncuda = '13.2'\n")
	r := f.look(t)
	differs(t, r, 1, "torch 2.15.1, but 3 of 4 nodes have 2.15.0")
	out := printed(t, r)
	if !strings.Contains(out, "\ntorch: 2.15.0 on gpu[01,03-04]; 2.15.1 on gpu02\n") {
		t.Error(out)
	}
	if d := r.Differences; len(d) != 1 || d[0].What != "torch" || !d[0].Must || fmt.Sprint(d[0].Values) != "[{2.15.0 [gpu01 gpu03 gpu04]} {2.15.1 [gpu02]}]" {
		t.Errorf("%+v", d)
	}
	// A minor of torch is what its ops were compiled for.
	f.envs[1].write(t, "torch/version.py", "__version__ = '2.14.0+cu132'\ncuda = '13.2'\n")
	f.opt.Verify = verify.LevelFiles
	differs(t, f.look(t), 1, "installed DeepSpeed is incompatible: built against torch 2.15, but this node has 2.14", "torch 2.14.0, but 3 of 4 nodes have 2.15.0")
	f.envs[1].write(t, "torch/version.py", "__version__ = '2.15.1+cu132'\ncuda = '13.2'\n")
	// Two against two: nobody can say who is odd.
	f.envs[2].write(t, "torch/version.py", "__version__ = '2.15.1+cu132'\ncuda = '13.2'\n")
	r = f.look(t)
	for _, n := range r.Nodes {
		if n.Status != report.Differs || n.Error != "torch: no majority: 2.15.0 on gpu[01,04], 2.15.1 on gpu[02-03]" {
			t.Errorf("%s: %s", n.Name, n.Error)
		}
	}
	out = printed(t, r)
	if !strings.Contains(out, "\ngpu[01-04] (4 nodes): torch: no majority") || !strings.HasSuffix(out, "\n0 of 4 nodes ok, 4 differ\n") {
		t.Error(out)
	}
	data, err := json.Marshal(r)
	if err != nil || !strings.Contains(string(data), `"differences":[{"what":"torch","must":true,"values":[{"value":"2.15.0","nodes":["gpu01","gpu04"]},`) {
		t.Errorf("%v %s", err, data)
	}
}

func TestVerifyOfNodesWithoutDeepSpeed(t *testing.T) {
	t.Parallel()
	f := deployed(t, 3)
	bare := newEnvironment(t, "2.15.0")
	f.opt.Hosts[1].Python = bare.python
	f.opt.Hosts[2].Python = "/nowhere/python"
	r := f.look(t)
	for i, want := range []string{"", "no DeepSpeed in the environment of " + bare.python, "no usable Python: /nowhere/python not found"} {
		if n := r.Nodes[i]; len(n.Differs) != 1 && i > 0 || n.Error != want && i > 0 {
			t.Errorf("%s: %q", n.Name, n.Differs)
		}
	}
	if r.Nodes[0].Status != report.OK || r.Summary.Differs != 2 || code(r.Err()) != 3 {
		t.Errorf("%v %+v", r.Err(), r.Summary)
	}
	// With none at all they agree, but run nothing.
	f.opt.Hosts = f.opt.Hosts[1:2]
	if r := f.look(t); code(r.Err()) != 3 || r.Nodes[0].Error != "no DeepSpeed in the environment of "+bare.python || r.Nodes[0].After != nil {
		t.Errorf("%v", r.Err())
	}
	// One elsewhere is not one of the environment.
	f.opt.Hosts[0].Env = map[string]string{"PYTHONPATH": f.envs[2].site}
	if n := f.look(t).Nodes[0]; n.Error != "node reported: no DeepSpeed in the environment: import finds "+filepath.Join(f.envs[2].site, "deepspeed") || !strings.Contains(n.Hint, "PYTHONPATH") {
		t.Errorf("%s, hint %s", n.Error, n.Hint)
	}
	// Unreachable nodes do not hide the others.
	gone := f.opt.Hosts[0]
	gone.Name, gone.Port = "gone", 1
	f.opt.Hosts = append(f.opt.Hosts, gone)
	if r := f.look(t); r.Nodes[1].Status != report.Unreachable || r.Nodes[1].Step != "connect" || r.Nodes[0].Status != report.Differs {
		t.Errorf("%+v", r.Summary)
	}
}

func TestVerifyAgainstAWheel(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	f := deployed(t, 2)
	older := load(t, makeWheel(t, t.TempDir(), wheelOptions{version: "0.19.7"}))[0]
	f.opt.Wheels = []wheel.Loaded{older}
	r := f.look(t)
	for _, n := range r.Nodes {
		if n.Status != report.Differs || n.Error != fmt.Sprintf("runs %s, not %s (sha256 %.12s)", n.After, older.Manifest.Name, older.Manifest.SHA256) || n.Wheel != older.Manifest.Name {
			t.Errorf("%s: %s", n.Name, n.Error)
		}
	}
	// One of several will do: that which it runs.
	f.opt.Wheels = []wheel.Loaded{older, f.wheel}
	if r := f.look(t); r.Err() != nil || len(r.Wheels) != 1 || r.Nodes[0].Wheel != f.wheel.Manifest.Name {
		t.Errorf("%v %v", r.Err(), r.Wheels)
	}
	// Another build of the same version.
	other := load(t, makeWheel(t, t.TempDir(), wheelOptions{files: map[string]string{adam: "rebuilt = 1\n"}}))[0]
	f.opt.Wheels = []wheel.Loaded{other}
	r = f.look(t)
	want := fmt.Sprintf("runs DeepSpeed %s (sha256 %.12s), not %s (sha256 %.12s)", f.wheel.Version, f.wheel.Manifest.SHA256, other.Manifest.Name, other.Manifest.SHA256)
	if n := r.Nodes[0]; n.Error != want {
		t.Errorf("%s\n%s", n.Error, want)
	}
	// One that could not run at all says why.
	foreign := load(t, makeWheel(t, t.TempDir(), wheelOptions{torch: "2.14.0", cuda: "13.0"}))[0]
	f.opt.Wheels = []wheel.Loaded{foreign}
	if n := f.look(t).Nodes[0]; !strings.Contains(n.Error, "is incompatible: built against torch 2.14, but this node has 2.15") {
		t.Error(n.Error)
	}
	f.opt.Wheels = []wheel.Loaded{foreign, older}
	if n := f.look(t).Nodes[0]; !strings.Contains(n.Error, "not "+older.Manifest.Name) || n.Wheel != older.Manifest.Name {
		t.Error(n.Error)
	}
	f.opt.Wheels = []wheel.Loaded{foreign, foreign}
	if n := f.look(t).Nodes[0]; !strings.Contains(n.Error, "cannot choose a wheel: "+foreign.Manifest.Name+" is incompatible: ") || n.Status != report.Differs {
		t.Error(n.Error)
	}
}

// A fleet may have a wheel for each kind of its nodes. Named, they are what is
// wanted; else nodes with another torch are odd ones.
func TestVerifyOfAWheelForEachTorch(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	var hosts []inventory.Host
	var servers []*sshtest.Server
	var wheels []wheel.Loaded
	var envs []environment
	for i, torch := range []string{"2.15.0", "2.14.0"} {
		e := newEnvironment(t, torch)
		h, s := host(t, fmt.Sprintf("gpu%d", i+1), e, sshtest.Options{})
		envs, hosts, servers = append(envs, e), append(hosts, h), append(servers, s)
		wheels = append(wheels, load(t, makeWheel(t, t.TempDir(), wheelOptions{torch: torch}))[0])
	}
	opt := options(t, wheels, servers, hosts...)
	if r := run(t, context.Background(), opt); r.Summary.OK != 2 || r.Consistent {
		t.Fatalf("after deploy: %v, %+v", r.Err(), r.Summary)
	}
	opt.Wheels = wheels
	if r := look(t, opt); r.Err() != nil || !r.Consistent || len(r.Wheels) != 2 {
		t.Errorf("with both wheels: %v\n%s", r.Err(), printed(t, r))
	}
	opt.Wheels = nil
	if r := look(t, opt); code(r.Err()) != 3 || r.Summary.Differs != 2 {
		t.Errorf("without: %v\n%s", r.Err(), printed(t, r))
	}
	// Nodes of one wheel must agree all the same.
	third := envs[0].twin(t, t.TempDir())
	third.write(t, "transformers-5.2.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: transformers\nVersion: 5.2.0\n")
	h, s := host(t, "gpu3", third, sshtest.Options{})
	opt = options(t, wheels, append(servers, s), append(hosts, h)...)
	r := look(t, opt)
	must := map[string]bool{}
	for _, d := range r.Differences {
		must[d.What] = d.Must
	}
	if torch, ok := must["torch"]; !ok || torch || !must["transformers"] || r.Nodes[1].Status != report.OK || r.Nodes[2].Status != report.Differs {
		t.Errorf("must: %v\n%s", must, printed(t, r))
	}
}

func TestVerifyLoadsEveryOp(t *testing.T) {
	t.Parallel()
	broken := "raise ImportError('no kernel image')\n"
	for name, c := range map[string]struct{ files, want string }{
		"op raises":           {broken, "node reported: cannot load op cpu_adam: ImportError: no kernel image"},
		"illegal instruction": {"import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n", "op cpu_adam: killed by an illegal instruction"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnvironment(t, "2.15.0")
			h, s := host(t, "gpu01", e, sshtest.Options{})
			byHand(t, e, makeWheel(t, t.TempDir(), wheelOptions{files: map[string]string{adam: c.files}}))
			f := few{envs: []environment{e}, opt: options(t, nil, []*sshtest.Server{s}, h)}
			r := f.look(t)
			if n := r.Nodes[0]; n.Status != report.Failed || n.Step != "verify" || n.Error != c.want || code(r.Err()) != 3 {
				t.Errorf("%s: %s", n.Status, n.Error)
			}
			if out := printed(t, r); !strings.Contains(out, "\ngpu01: verify: "+c.want) {
				t.Error(out)
			}
			f.opt.Verify = verify.LevelFiles
			if r := f.look(t); r.Err() != nil {
				t.Error(r.Err())
			}
		})
	}
}

func TestVerifyNamesAShadow(t *testing.T) {
	t.Parallel()
	f := deployed(t, 2)
	shadow := t.TempDir()
	if err := os.Mkdir(filepath.Join(shadow, "deepspeed"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(shadow, "deepspeed", "__init__.py"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	f.opt.Hosts[1].Env = map[string]string{"PYTHONPATH": shadow}
	r := f.look(t)
	differs(t, r, 1, "import deepspeed finds "+filepath.Join(shadow, "deepspeed"))
	if !strings.Contains(r.Nodes[1].Hint, "PYTHONPATH") {
		t.Errorf("hint %q", r.Nodes[1].Hint)
	}
}

func TestVerifyOfCompanions(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e := newEnvironment(t, "2.15.0")
	h, s := host(t, "gpu01", e, sshtest.Options{})
	opt := options(t, load(t, makeWheel(t, t.TempDir(), wheelOptions{require: []string{"hjson"}})), []*sshtest.Server{s}, h)
	opt.Bundle = wheelhouse(t, small{name: "hjson", version: "3.1.0"})
	if r := run(t, context.Background(), opt); r.Err() != nil {
		t.Fatal(r.Err())
	}
	opt.Wheels, opt.Bundle = nil, nil
	f := few{envs: []environment{e}, opt: opt}
	if r := f.look(t); r.Err() != nil {
		t.Fatal(r.Err())
	}
	e.write(t, "hjson/__init__.py", "edited = 1\n")
	differs(t, f.look(t), 0, "files of hjson are missing or do not match RECORD: hjson/__init__.py")
	if err := os.Remove(filepath.Join(e.site, "hjson/__init__.py")); err != nil {
		t.Fatal(err)
	}
	differs(t, f.look(t), 0, "files of hjson are missing or do not match RECORD: hjson/__init__.py")
	if err := os.RemoveAll(filepath.Join(e.site, "hjson-3.1.0.dist-info")); err != nil {
		t.Fatal(err)
	}
	differs(t, f.look(t), 0, "hjson, which dsbuild installed with DeepSpeed, is missing")
}

// What tells the facts has less time than what reads files.
func TestVerifyOfANodeThatHangs(t *testing.T) {
	t.Parallel()
	f := deployed(t, 1)
	python := filepath.Join(t.TempDir(), "python")
	if err := os.WriteFile(python, []byte("#!/bin/sh\nexec sleep 600\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	f.opt.Hosts[0].Python, f.opt.Timeout = python, 5*time.Second
	r, err := verify.Run(context.Background(), verifyOptions(f.opt))
	if n := r.Nodes[0]; err != nil || n.Status != report.Failed || n.Step != "probe" || n.Error != "timed out after 5.0s" || n.Hint == "" {
		t.Errorf("%v %+v", err, r.Nodes[0])
	}
}

func TestVerifyIsInterrupted(t *testing.T) {
	t.Parallel()
	f := deployed(t, 1)
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(fmt.Errorf("stop"))
	r, err := verify.Run(ctx, verifyOptions(f.opt))
	if err != nil || r.Nodes[0].Status != report.Skipped || r.Nodes[0].Error != "stop" || r.Consistent {
		t.Errorf("%v %+v", err, r)
	}
	f.opt.Wheels = []wheel.Loaded{{Path: "/nowhere.whl", Manifest: wheel.Manifest{Name: "nowhere.whl"}}}
	if _, err := verify.Run(context.Background(), verifyOptions(f.opt)); err == nil {
		t.Error("a wheel that is gone")
	}
}

// A wheel of the stable ABI is for torch 2.10 and newer: it is installed beside torch 2.15, and the
// manifest on the node says the same.
func TestVerifyOfAWheelForEveryTorch(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t, "2.15.0")
	offered := load(t, makeWheel(t, t.TempDir(), wheelOptions{stable: "2.10"}))
	h, s := host(t, "gpu01", e, sshtest.Options{})
	opt := options(t, offered, []*sshtest.Server{s}, h)
	if r := run(t, t.Context(), opt); r.Err() != nil {
		t.Fatal(r.Err())
	}
	opt.Wheels = nil
	if r := look(t, opt, e.dir); r.Err() != nil {
		t.Error(r.Nodes[0].Error)
	}
}
