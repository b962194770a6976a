package deploy_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

// withFiles adds files to a wheel. "console" among them is the list of its commands.
func withFiles(t *testing.T, path string, more map[string]string) string {
	t.Helper()
	files := wheeltest.Read(t, path)
	info := strings.TrimSuffix(wheeltest.Member(t, files, ".dist-info/METADATA"), "METADATA")
	for name, text := range more {
		if name == "console" {
			name = info + "entry_points.txt"
		}
		files[strings.Replace(name, "DATA/", strings.TrimSuffix(info, ".dist-info/")+".data/", 1)] = text
	}
	wheeltest.Write(t, path, files)
	return path
}

func commands(names ...string) map[string]string {
	text := "[console_scripts]\n"
	for _, name := range names {
		text += name + " = deepspeed:main\n"
	}
	return map[string]string{"console": text}
}

func TestCommandsArePutBack(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e := newEnvironment(t, "2.15.0").withPip(t, realPip)
	h, s := host(t, "gpu1", e, sshtest.Options{})
	broken := makeWheel(t, t.TempDir(), wheelOptions{files: map[string]string{"deepspeed/__init__.py": "import no_such_module\n"}})
	opt := options(t, load(t, withFiles(t, broken, commands("ds_new"))), []*sshtest.Server{s}, h)
	was := e.snapshot(t)
	if n := run(t, context.Background(), opt).Nodes[0]; n.Status != report.Failed || n.Step != "verify" {
		t.Errorf("%+v", n)
	}
	e.mustBe(t, was)

	opt.Wheels = load(t, withFiles(t, makeWheel(t, t.TempDir(), wheelOptions{}), commands("ds_new")))
	opt.Verify = verify.LevelFiles
	if r := run(t, context.Background(), opt); r.Err() != nil || !exists(filepath.Join(e.dir, "bin", "ds_new"))() {
		t.Fatal(r.Err())
	}
	if r := run(t, context.Background(), opt); r.Err() != nil || r.Nodes[0].Changed {
		t.Errorf("its own command is in its way: %+v", r.Nodes[0])
	}
	if r := back(t, opt); r.Err() != nil {
		t.Errorf("%+v", r.Nodes[0])
	}
	e.mustBe(t, was)
}

func TestCommandsOfTheEnvironmentAreRefused(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	for _, more := range []map[string]string{
		commands("python"), commands("ds_fine", "python3.11"), commands("../python"), commands("pypy3"), commands("activate"),
		commands("a/b"), commands(".."), commands("x python"),
		{"console": "[gui_scripts]\npythonw = deepspeed:main\n"},
		{"console": "[[console_scripts]]\n\tpython = deepspeed:main\n"},
		{"console": "[console_scripts]\nds = deepspeed:main\x0bpython = deepspeed:main\n"},
		{"DATA/scripts/python3": "#!python\n"},
		{"DATA/data/bin/python": "#!python\n"},
		{"DATA/scripts/python/x": ""},
		{"DATA/scripts/ds/x": ""},
		{"DATA/data/bin/ds/x": ""},
		{"console": "[console_scripts]\nds==python=deepspeed:main\n"},
		{"console": "[ console_scripts ]\npython = deepspeed:main\n"},
	} {
		path := withFiles(t, makeWheel(t, t.TempDir(), wheelOptions{}), more)
		if _, err := wheel.LoadAll(t.Context(), path); code(err) != 4 || !strings.Contains(err.Error(), "metadata: ") {
			t.Errorf("%q: %v", more, err)
		}
	}
}

func TestCommandsOfOthersAreRefusedBeforeAByteIsSent(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t, "2.15.0")
	e.install(t, small{name: "hjson", version: "2.0", files: map[string]string{"hjson.py": "", "console": "[console_scripts]\nhjson = hjson:main\n"}})
	e.write(t, "../../../bin/mine", "#!/bin/sh\n")
	if err := os.Symlink("/nowhere", filepath.Join(e.dir, "bin", "broken")); err != nil {
		t.Fatal(err)
	}
	h, s := host(t, "gpu1", e, sshtest.Options{})
	was := e.snapshot(t)
	for name, want := range map[string]string{"hjson": "hjson belongs to hjson", "mine": "mine belongs to no package", "broken": "broken belongs to no package"} {
		opt := options(t, load(t, withFiles(t, makeWheel(t, t.TempDir(), wheelOptions{}), commands(name))), []*sshtest.Server{s}, h)
		count := &sshtest.CountingDialer{Dialer: opt.Dialer}
		opt.Dialer = count
		if n := run(t, context.Background(), opt).Nodes[0]; n.Status != report.Refused || n.Step != "fit" || !strings.Contains(n.Error, want) || n.Hint == "" || count.Puts.Load() != 0 {
			t.Errorf("%s: %+v, %d files sent", name, n, count.Puts.Load())
		}
		if exists(e.own())() {
			t.Errorf("%s: something was written", name)
		}
	}
	// The same holds for what goes along. The node itself looks once more, before anything is changed.
	opt := options(t, load(t, makeWheel(t, t.TempDir(), needy())), []*sshtest.Server{s}, h)
	more := []small{{name: "hjson", version: "3.1.0", files: map[string]string{"hjson.py": "", "console": "[console_scripts]\nhjson = hjson:main\nmine = hjson:main\n"}}, {name: "space-two", version: "1.0"}}
	for _, c := range []struct {
		bundle     *wheel.Bundle
		status     report.Status
		step, want string
	}{
		{wheelhouse(t, more...), report.Refused, "fit", "existing commands: mine belongs to no package"},
		{unread(t, more...), report.Failed, "install", "bin/mine already exists"},
	} {
		opt.Bundle = c.bundle
		if n := run(t, context.Background(), opt).Nodes[0]; n.Status != c.status || n.Step != c.step || !strings.Contains(n.Error, c.want) || n.Changed {
			t.Errorf("%+v, want it %s at %s: %s", n, c.status, c.step, c.want)
		}
	}
	e.mustBe(t, was)
}

// What goes along cannot take the environment's Python away either, however it says it.
func TestCompanionsOfTheEnvironmentAreRefused(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e := newEnvironment(t, "2.15.0")
	python := filepath.Base(filepath.Dir(e.site)) // python3.11
	if err := os.Remove(filepath.Join(e.dir, "bin", python)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, load(t, makeWheel(t, t.TempDir(), needy())), []*sshtest.Server{s}, h)
	was := e.snapshot(t)
	for want, files := range map[string]map[string]string{
		"ambiguous entry point: ":           {"console": "[console_scripts]\nx python = hjson:main\n"},
		"ambiguous entry point: 'x==python": {"console": "[console_scripts]\nx==python=hjson:main\n"},
		"bin/" + python + ", a part of":     {"console": "[ console_scripts ]\n" + python + " = hjson:main\n"},
		"bin/Python, a part of":             {"hjson-3.1.0.data/scripts/Python": "#!python\n"},
		".dsbuild/x is among dsbuild's own": {".dsbuild/x": ""},
		".dsbuild/y is among dsbuild's own": {"hjson-3.1.0.data/data/lib/" + python + "/site-packages/.dsbuild/y": ""},
		"pyvenv.cfg, a part of":             {"hjson-3.1.0.data/data/pyvenv.cfg": "home = /nowhere\n"},
		"os/__init__.py, a part of":         {"hjson-3.1.0.data/data/lib/" + python + "/os/__init__.py": ""},
		"a directory of torch":              {"Torch/x.py": ""},
		"directory of torch or DeepSpeed":   {"hjson-3.1.0.data/platlib/nvidia.abi3.so": ""},
	} {
		files["hjson.py"] = ""
		opt.Bundle = unread(t, small{name: "hjson", version: "3.1.0", files: files}, small{name: "space-two", version: "1.0"})
		if n := run(t, context.Background(), opt).Nodes[0]; n.Status != report.Failed || n.Step != "install" || !strings.Contains(n.Error, want) || n.Changed {
			t.Errorf("%s: %+v", want, n)
		}
		e.mustBe(t, was)
	}
}

// changeByteCode changes what a module does and keeps the header of its byte code.
func changeByteCode(t *testing.T, path string, old, by string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil || !bytes.Contains(data, []byte(old)) || len(old) != len(by) {
		t.Fatalf("%v: %q", err, data)
	}
	if err := os.WriteFile(path, bytes.ReplaceAll(data, []byte(old), []byte(by)), 0o644); err != nil {
		t.Fatal(err)
	}
}

func cached(t *testing.T, e environment, module string) string {
	t.Helper()
	tag := pythonTag(t)
	return filepath.Join(e.site, filepath.Dir(module), "__pycache__", strings.TrimSuffix(filepath.Base(module), ".py")+".cpython-"+tag[2:]+".pyc")
}

// Byte code that came along with the wheel is known by what it was, and not by what
// its module would become here.
func TestByteCodeThatCameAlongIsSeenAndMended(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	code, packed := byteCode(t)
	path := makeWheel(t, t.TempDir(), wheelOptions{code: &code, files: map[string]string{"deepspeed/origin.py": "x = 'source'\n"}})
	if err := os.WriteFile(path+wheel.ByteCodeSuffix, packed, 0o644); err != nil {
		t.Fatal(err)
	}
	e := newEnvironment(t, "2.15.0")
	h, s := host(t, "gpu1", e, sshtest.Options{})
	f := few{envs: []environment{e}, wheel: load(t, path)[0], opt: options(t, nil, []*sshtest.Server{s}, h)}
	f.opt.Verify = verify.LevelFiles
	for range 2 {
		if r := run(t, context.Background(), withWheel(f)); r.Err() != nil || !r.Nodes[0].Changed {
			t.Fatalf("deploy: %+v", r.Nodes[0])
		}
		if r := f.look(t); r.Err() != nil || e.origin(t) != "byte code" {
			t.Fatalf("after the deploy: %v, %s", r.Err(), e.origin(t))
		}
		changeByteCode(t, cached(t, e, "deepspeed/origin.py"), "byte code", "evil code")
		if got := e.origin(t); got != "evil code" {
			t.Fatalf("imported %q", got)
		}
		differs(t, f.look(t), 0, "deepspeed/__pycache__/origin.cpython-")
	}
}

// What runs in place of what was installed is named, and the next deploy mends it: at
// first so in one of two environments, then in the only one.
func TestCodeThatRunsIsSeenAndMended(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "__init__.py"), []byte("__version__ = 'evil'\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(t *testing.T, e environment)
		want   string
	}{
		"byte code": {func(t *testing.T, e environment) {
			changeByteCode(t, cached(t, e, "deepspeed/version.py"), "0.19.8+", "6.66.6+")
		}, "deepspeed/__pycache__/version.cpython-"},
		"a linked folder": {func(t *testing.T, e environment) {
			if err := os.Symlink(outside, filepath.Join(e.site, "deepspeed", "version")); err != nil {
				t.Fatal(err)
			}
		}, "deepspeed/version is a link to a directory"},
		"a folder": {func(t *testing.T, e environment) {
			e.write(t, "deepspeed/version/__init__.py", "__version__ = 'evil'\n")
		}, "deepspeed/version/__init__.py is code that is not in RECORD"},
		"a library": {func(t *testing.T, e environment) {
			e.write(t, "deepspeed/version.abi3.so", "\x7fELF")
		}, "deepspeed/version.abi3.so is code that is not in RECORD"},
		"a library by its version": {func(t *testing.T, e environment) {
			e.write(t, "deepspeed/libgomp.so.1", "")
		}, "deepspeed/libgomp.so.1 is code that is not in RECORD"},
		"a library by its content": {func(t *testing.T, e environment) {
			e.write(t, "deepspeed/ops/data.bin", "\x7fELF")
		}, "deepspeed/ops/data.bin is code that is not in RECORD"},
		"a header": {func(t *testing.T, e environment) {
			e.write(t, "deepspeed/ops/csrc/includes/stdlib.h", "")
		}, "deepspeed/ops/csrc/includes/stdlib.h is code that is not in RECORD"},
		"a module in the cache": {func(t *testing.T, e environment) {
			e.write(t, "deepspeed/ops/__pycache__/extra.py", "")
		}, "deepspeed/ops/__pycache__/extra.py is code that is not in RECORD"},
		"code that cannot be read": {func(t *testing.T, e environment) {
			if err := syscall.Mkfifo(filepath.Join(e.site, "deepspeed/later.py"), 0o644); err != nil {
				t.Fatal(err)
			}
		}, "deepspeed/later.py is code that is not in RECORD"},
		"entry points": {func(t *testing.T, e environment) {
			infos, _ := filepath.Glob(filepath.Join(e.site, "deepspeed-*.dist-info"))
			e.write(t, filepath.Base(infos[0])+"/entry_points.txt", "[torch.backends]\nx = deepspeed.ops:evil\n")
		}, ".dist-info/entry_points.txt is code that is not in RECORD"},
		"a changed module without a digest": {func(t *testing.T, e environment) {
			e.write(t, "deepspeed/version.py", "__version__ = 'evil'\n")
			records, _ := filepath.Glob(filepath.Join(e.site, "deepspeed-*.dist-info", "RECORD"))
			data, err := os.ReadFile(records[0])
			if err == nil {
				err = os.WriteFile(records[0], regexp.MustCompile(`(?m)^deepspeed/version.py,.*$`).ReplaceAll(data, []byte("deepspeed/version.py,,")), 0o644)
			}
			if err = errors.Join(err, os.RemoveAll(e.own())); err != nil {
				t.Fatal(err)
			}
		}, "deepspeed/version.py is code that is not in RECORD"},
		"byte code for python -O": {func(t *testing.T, e environment) {
			path := cached(t, e, "deepspeed/version.py")
			data, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(strings.TrimSuffix(path, "pyc")+"opt-1.pyc", bytes.ReplaceAll(data, []byte("0.19.8+"), []byte("6.66.6+")), 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
		}, ".opt-1.pyc is byte code that does not match its module"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := deployed(t, 1)
			f.opt.Verify = verify.LevelFiles
			if r := f.look(t); r.Err() != nil {
				t.Fatal(r.Err())
			}
			f.envs[0].write(t, "deepspeed/ops/notes.txt", "the user's\n")
			c.change(t, f.envs[0])
			differs(t, f.look(t), 0, c.want)
			if r := run(t, context.Background(), withWheel(f)); r.Err() != nil || !r.Nodes[0].Changed {
				t.Errorf("deploy: %+v", r.Nodes[0])
			}
			if r := f.look(t); r.Err() != nil {
				t.Errorf("after the deploy: %v", r.Err())
			}
			if !exists(filepath.Join(f.envs[0].site, "deepspeed/ops/notes.txt"))() {
				t.Error("a file of the user's is gone")
			}
		})
	}
}

// Byte code that Python itself would make anew, or has made anew, is no difference.
func TestByteCodeThatIsAsGoodIsNoDifference(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	f := deployed(t, 1)
	e := f.envs[0]
	f.opt.Verify = verify.LevelFiles
	touched := filepath.Join(e.site, "deepspeed/version.py")
	info, err := os.Stat(touched)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(touched, info.ModTime(), info.ModTime().Add(100e9)); err != nil {
		t.Fatal(err)
	}
	changeByteCode(t, cached(t, e, "deepspeed/version.py"), "0.19.8+", "6.66.6+") // older than its module now
	if r := f.look(t); r.Err() != nil {
		t.Error(r.Err())
	}
	if v := e.version(t); !strings.HasPrefix(v, "0.19.8") { // writes it anew
		t.Error(v)
	}
	if r := f.look(t); r.Err() != nil {
		t.Error(r.Err())
	}
	if r := run(t, context.Background(), withWheel(f)); r.Err() != nil || r.Nodes[0].Changed {
		t.Errorf("%+v", r.Nodes[0])
	}
}

func TestCodeOfAnotherPackageIsToldAndStays(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	f := deployed(t, 1)
	e := f.envs[0]
	f.opt.Verify = verify.LevelFiles
	e.install(t, small{name: "plug", version: "1.0", files: map[string]string{"deepspeed/ops/plug.py": "x = 1\n"}})
	r := f.look(t)
	differs(t, r, 0, "code in DeepSpeed's directory belongs to plug: deepspeed/ops/plug.py")
	if !strings.Contains(r.Nodes[0].Hint, "uninstall that package") {
		t.Errorf("hint %q", r.Nodes[0].Hint)
	}
	opt := withWheel(f)
	opt.Force = true
	if r := run(t, context.Background(), opt); r.Err() != nil || !exists(filepath.Join(e.site, "deepspeed/ops/plug.py"))() {
		t.Errorf("%+v", r.Nodes[0])
	}
	if r := back(t, opt); r.Err() != nil || !exists(filepath.Join(e.site, "deepspeed/ops/plug.py"))() {
		t.Errorf("%+v", r.Nodes[0])
	}
}

// A row of RECORD makes no file of the user and no part of the environment the package's own: they stay through two
// deploys, of which the second removes what the first has put aside.
func TestRecordOfSomebodysFile(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t, "2.15.0")
	byHand(t, e, makeWheel(t, t.TempDir(), wheelOptions{version: "0.19.6"}))
	python := filepath.Base(filepath.Dir(e.site))
	theirs := map[string]string{
		"../../../checkpoints/model.pt": ",", "../../../bin/train.sh": ",", "../../../bin/activate": ",", "../../../bin/python": ",",
		"../../../bin/other.sh": "sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0", "../../../bin/activate.csh": "", "../../../pyvenv.cfg": "",
		"../../../conda-meta/history": "", "../../" + python + "/LICENSE.txt": "",
	}
	was := map[string]string{}
	for name, digest := range theirs {
		path := filepath.Join(e.site, name)
		if _, err := os.Lstat(path); err != nil {
			e.write(t, name, "the user's")
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if was[name] = string(data); digest == "" { // the right one
			sum := sha256.Sum256(data)
			theirs[name] = "sha256=" + base64.RawURLEncoding.EncodeToString(sum[:]) + ","
		}
	}
	records, err := filepath.Glob(filepath.Join(e.site, "deepspeed-*.dist-info/RECORD"))
	if err != nil || len(records) != 1 {
		t.Fatal(err, records)
	}
	rows, err := os.ReadFile(records[0])
	if err == nil {
		for name, digest := range theirs {
			rows = append(rows, name+","+digest+"\n"...)
		}
		e.write(t, "notes/mine.txt", "the user's")
		was["notes/mine.txt"] = "the user's"
		rows = append(rows, "notes,,\ndeepspeed/../torch,,\n"...) // a folder is no file
		err = os.WriteFile(records[0], rows, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	h, s := host(t, "gpu1", e, sshtest.Options{})
	for _, version := range []string{"0.19.7", "0.19.8"} {
		opt := options(t, load(t, makeWheel(t, t.TempDir(), wheelOptions{version: version})), []*sshtest.Server{s}, h)
		opt.Verify = verify.LevelFiles
		if r := run(t, t.Context(), opt); r.Err() != nil {
			t.Fatal(r.Err())
		}
		for name, data := range was {
			if got, err := os.ReadFile(filepath.Join(e.site, name)); string(got) != data {
				t.Errorf("after %s: %s is %.40q, %v, want it as it was", version, name, got, err)
			}
		}
	}
}

// A DeepSpeed whose RECORD names folders of others: only its files move.
// A folder that the deploy moved aside as a whole belongs to another package, too, when the rollback comes.
func TestRollbackIntoAFolderThatAnotherPackageShares(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e := newEnvironment(t, "2.15.0")
	byHand(t, e, withFiles(t, makeWheel(t, t.TempDir(), wheelOptions{version: "0.19.7"}), map[string]string{"shared/ours.py": "x = 2\n", "shared/deep/ours.py": ""}))
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, load(t, makeWheel(t, t.TempDir(), wheelOptions{})), []*sshtest.Server{s}, h)
	opt.Verify = verify.LevelFiles
	was := e.snapshot(t)
	if r := run(t, context.Background(), opt); r.Err() != nil {
		t.Fatal(r.Err())
	}
	e.install(t, small{name: "other", version: "1.0", files: map[string]string{"shared/theirs.py": "x = 1\n"}})
	between := e.snapshot(t)
	if r := back(t, opt); r.Err() != nil {
		t.Errorf("%+v", r.Nodes[0])
	}
	now := e.snapshot(t)
	for path, what := range was {
		if strings.Contains(path, "/ours.py") && now[path] != what {
			t.Errorf("%s was %q, is %q", path, what, now[path])
		}
	}
	for path, what := range between {
		if strings.Contains(path, "/theirs.py") && now[path] != what {
			t.Errorf("%s of another package was %q, is %q", path, what, now[path])
		}
	}
}

func TestFoldersOfOthersStay(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e := newEnvironment(t, "2.15.0")
	e.install(t, small{name: "other", version: "1.0", files: map[string]string{"shared/theirs.py": "x = 1\n", "shared/deep/theirs.py": "", "shared/both.py": "both\n"}})
	byHand(t, e, withFiles(t, makeWheel(t, t.TempDir(), wheelOptions{version: "0.19.7"}),
		map[string]string{"shared/ours.py": "x = 2\n", "shared/deep/ours.py": "", "shared/only/ours.py": "", "shared/both.py": "both\n"}))
	e.write(t, "shared/notes.txt", "the user's")
	h, s := host(t, "gpu1", e, sshtest.Options{})
	was := e.snapshot(t)
	theirs := map[string]string{}
	for path, what := range was {
		if strings.Contains(path, "theirs") || strings.HasSuffix(path, "notes.txt") || strings.HasSuffix(path, "both.py") || strings.HasSuffix(path, "/shared") {
			theirs[path] = what
		}
	}
	broken := makeWheel(t, t.TempDir(), wheelOptions{files: map[string]string{"deepspeed/__init__.py": "import no_such_module\n"}})
	opt := options(t, load(t, broken), []*sshtest.Server{s}, h)
	if n := run(t, context.Background(), opt).Nodes[0]; n.Status != report.Failed {
		t.Errorf("%+v", n)
	}
	e.mustBe(t, was)
	opt.Wheels, opt.Verify = load(t, makeWheel(t, t.TempDir(), wheelOptions{})), verify.LevelFiles
	if r := run(t, context.Background(), opt); r.Err() != nil {
		t.Error(r.Err())
	}
	now := e.snapshot(t)
	for path, what := range theirs {
		if now[path] != what {
			t.Errorf("%s was %q, is %q", path, what, now[path])
		}
	}
	for path := range now {
		if strings.Contains(path, "shared") && strings.Contains(path, "ours") {
			t.Errorf("%s is there", path)
		}
	}
	// Others put a file there meanwhile, where the rollback must make a folder.
	e.write(t, "deepspeed/mine.txt", "the user's")
	if r := back(t, opt); r.Err() != nil {
		t.Errorf("%+v", r.Nodes[0])
	}
	want := maps.Clone(was)
	mine := filepath.Join(e.site, "deepspeed/mine.txt")
	want[mine] = e.snapshot(t)[mine]
	e.mustBe(t, want)
}
