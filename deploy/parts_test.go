package deploy_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/dsbuild/dsbuild/deploy"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/remote/sshtest"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

// noise is n bytes that do not compress.
func noise(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return string(b)
}

// nightly makes the wheels of two nights: a large file is the same, another has
// changed. Both have byte code, which is the same.
func nightly(t *testing.T, same, changed int) (first, second []deploy.Wheel) {
	t.Helper()
	return nightlyOf(t, wheelOptions{}, same, changed)
}

func nightlyOf(t *testing.T, opt wheelOptions, same, changed int) (first, second []deploy.Wheel) {
	t.Helper()
	b, packed := byteCode(t)
	stays := noise(same)
	made := func(version string) []deploy.Wheel {
		opt.version, opt.code = version, &b
		opt.files = map[string]string{"deepspeed/origin.py": "x = 'source'\n", "deepspeed/stays.bin": stays, "deepspeed/changes.bin": noise(changed)}
		path := makeWheel(t, t.TempDir(), opt)
		if err := os.WriteFile(path+wheel.ByteCodeSuffix, packed, 0o600); err != nil {
			t.Fatal(err)
		}
		return load(t, path)
	}
	return made("0.19.7"), made("0.19.8")
}

// kept is where an environment keeps the wheel that was installed last.
func (e environment) kept() string { return filepath.Join(e.dir, ".dsbuild", "wheel") }

// whole is what a deploy sends to a node that keeps nothing.
func whole(t *testing.T, w deploy.Wheel) int64 {
	t.Helper()
	_, code, err := wheel.HashFile(w.Path + wheel.ByteCodeSuffix)
	if err != nil {
		t.Fatal(err)
	}
	return w.Manifest.Size + code
}

// sentBy deploys a wheel to a node and returns what was sent, of which it is known
// that it was enough.
func sentBy(t *testing.T, e environment, opt deploy.Options, w []deploy.Wheel) int64 {
	t.Helper()
	opt.Wheels = w
	r := run(t, context.Background(), opt)
	if n := r.Nodes[0]; r.Err() != nil || !n.Changed || n.After == nil || n.After.SHA256 != w[0].Manifest.SHA256 {
		t.Errorf("%v: %+v", r.Err(), n)
	}
	if got := e.version(t); got != w[0].Version {
		t.Errorf("an import finds %q", got)
	}
	if got := e.origin(t); got != "byte code" {
		t.Errorf("imported %q", got)
	}
	if left := e.leftovers(t); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	return r.Nodes[0].Sent
}

// A node is sent what it has not of the wheel that was installed before.
func TestOnlyWhatDiffersIsSent(t *testing.T) {
	t.Parallel()
	first, second := nightly(t, 1<<20, 1000)
	e := newEnvironment(t, "2.15.0")
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, nil, []*sshtest.Server{s}, h)
	if sent := sentBy(t, e, opt, first); sent != whole(t, first[0]) {
		t.Errorf("%d bytes were sent to a node that keeps nothing, not %d", sent, whole(t, first[0]))
	}
	if st, err := os.Stat(e.kept()); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", st, err)
	}
	count := &counting{Dialer: opt.Dialer}
	opt.Dialer = count
	if sent := sentBy(t, e, opt, second); sent < 1000 || sent > 20_000 || count.puts.Load() != 0 {
		t.Errorf("%d bytes were sent of %d, in %d files", sent, second[0].Manifest.Size, count.puts.Load())
	}
	// What was deployed before a rollback is still there.
	back(t, opt)
	count.puts.Store(0)
	if sent := sentBy(t, e, opt, second); sent != 0 || count.puts.Load() != 0 {
		t.Errorf("%d bytes were sent after a rollback, in %d files", sent, count.puts.Load())
	}
	// As an earlier dsbuild left it.
	if err := os.RemoveAll(e.kept()); err != nil {
		t.Fatal(err)
	}
	if sent := sentBy(t, e, opt, first); sent != whole(t, first[0]) {
		t.Errorf("%d bytes were sent where nothing is kept", sent)
	}
}

// Many nodes get byte code only as far as they keep it.
func TestByteCodeForManyNodes(t *testing.T) {
	t.Parallel()
	first, second := nightly(t, 300_000, 1000)
	e := newEnvironment(t, "2.15.0")
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, nil, []*sshtest.Server{s}, h)
	for _, c := range []struct {
		wheels []deploy.Wheel
		forget bool
		origin string
		sent   func(n int64) bool
	}{
		{first, true, "source", func(n int64) bool { return n == first[0].Manifest.Size }},
		{second, false, "source", func(n int64) bool { return n < 30_000 }},
		{first, true, "byte code", nil}, // to few nodes
		{second, false, "byte code", func(n int64) bool { return n < 30_000 }},
	} {
		if c.forget {
			if err := os.RemoveAll(e.kept()); err != nil {
				t.Fatal(err)
			}
		}
		opt.Wheels = c.wheels
		d := deploy.New(opt)
		if c.sent != nil {
			deploy.Crowded(d)
		}
		if _, err := d.Survey(t.Context()); err != nil {
			t.Fatal(err)
		}
		r := d.Apply(t.Context())
		if n := r.Nodes[0]; r.Err() != nil || !n.Changed || c.sent != nil && !c.sent(n.Sent) {
			t.Errorf("%v: %+v", r.Err(), n)
		}
		if got := e.origin(t); got != c.origin {
			t.Errorf("imported %q, not %q", got, c.origin)
		}
	}
}

// Whatever became of what a node kept, it gets the wheel.
func TestWhatIsKeptIsNotTrusted(t *testing.T) {
	t.Parallel()
	small, few := nightly(t, 300_000, 10)
	large, many := nightly(t, 3<<20, 1<<20) // what differs is a file of its own
	for name, c := range map[string]struct {
		damage func(wheel, code string) error
		during bool // after it was compared
		sent   func(sent int64) bool
	}{
		"other files": {func(w, code string) error {
			return errorsOf(os.WriteFile(w, []byte("no wheel"), 0o600), os.WriteFile(code, []byte("no code"), 0o600))
		}, false, func(n int64) bool { return n == whole(t, few[0]) }},
		"empty":                   {func(w, code string) error { return errorsOf(os.Truncate(w, 0), os.Truncate(code, 0)) }, false, func(n int64) bool { return n == whole(t, few[0]) }},
		"a folder":                {func(w, _ string) error { return errorsOf(os.Remove(w), os.Mkdir(w, 0o700)) }, false, func(n int64) bool { return n == few[0].Manifest.Size }},
		"a bit of the large file": {func(w, _ string) error { return flip(w, largest(w)) }, false, func(n int64) bool { return n == few[0].Manifest.Size }},
		"a bit of a small one":    {func(w, _ string) error { return flip(w, 100) }, false, func(n int64) bool { return n < 30_000 }},
		"a bit, later":            {func(w, _ string) error { return flip(w, largest(w)) }, true, func(n int64) bool { return n > many[0].Manifest.Size }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, second, differs := small, few, int64(30_000)
			if c.during {
				first, second, differs = large, many, 2<<20
			}
			e := newEnvironment(t, "2.15.0")
			h, s := host(t, "gpu1", e, sshtest.Options{})
			opt := options(t, nil, []*sshtest.Server{s}, h)
			sentBy(t, e, opt, first)
			var said strings.Builder
			opt.Reporter = ui.New(&said, ui.Options{})
			hurt := func() {
				if err := c.damage(filepath.Join(e.kept(), "deepspeed.whl"), filepath.Join(e.kept(), "bytecode.xz")); err != nil {
					t.Error(err)
				}
			}
			if c.during {
				var once sync.Once
				opt.Dialer = &counting{Dialer: opt.Dialer, before: func(up remote.Upload) error {
					if strings.HasSuffix(up.Path, ".parts") {
						once.Do(hurt)
					}
					return nil
				}}
			} else {
				hurt()
			}
			if sent := sentBy(t, e, opt, second); !c.sent(sent) {
				t.Errorf("%d bytes were sent, all are %d", sent, whole(t, second[0]))
			}
			if c.during != strings.Contains(said.String(), "gpu1: the node says: what was kept of deepspeed.whl is damaged; all of "+filepath.Base(second[0].Path)+" is sent") {
				t.Errorf("said:\n%s", said.String())
			}
			// What is kept now is right.
			if sent := sentBy(t, e, opt, first); sent > differs {
				t.Errorf("%d bytes were sent after that", sent)
			}
		})
	}
}

// flip changes a bit of a file.
func flip(path string, at int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	b := make([]byte, 1)
	_, err = f.ReadAt(b, at)
	b[0] ^= 1
	if err == nil {
		_, err = f.WriteAt(b, at)
	}
	f.Close()
	return err
}

// largest is a byte within the largest part of a wheel.
func largest(path string) int64 {
	parts, err := wheel.Parts(path)
	if err != nil {
		return -1
	}
	p := slices.MaxFunc(parts, func(a, b wheel.Part) int { return int(a.Size - b.Size) })
	return p.Offset + p.Size/2
}

// errorsOf is the first error.
func errorsOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// What differs is sent as a wheel is: a connection that breaks costs what was on its
// way, in the same run and in the next.
func TestABrokenTransferOfPartsGoesOn(t *testing.T) {
	t.Parallel()
	first, second := nightly(t, 8<<20, 3<<20)
	for name, cut := range map[string]sshtest.Options{"in the same run": {CutAfter: 2 << 20, Cuts: 1}, "in the next": {CutAfter: 500_000}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnvironment(t, "2.15.0")
			h, s := host(t, "gpu1", e, sshtest.Options{})
			good := options(t, nil, []*sshtest.Server{s}, h)
			sentBy(t, e, good, first)
			h, s = host(t, "gpu1", e, cut)
			opt := options(t, second, []*sshtest.Server{s}, h)
			if cut.Cuts == 0 {
				if n := run(t, context.Background(), opt).Nodes[0]; n.Status != deploy.Failed || n.Step != "put" {
					t.Errorf("%+v", n)
				}
				part := filepath.Join(e.dir, ".dsbuild", "inbox", filepath.Base(second[0].Path)+".parts.part")
				waitFor(t, "something has arrived", exists(part))
				opt = good
			}
			if sent := sentBy(t, e, opt, second); sent < 3<<20 || sent > 4<<20 {
				t.Errorf("%d bytes were sent", sent)
			}
			if cut.Cuts > 0 && s.Connections() != 2 {
				t.Errorf("%d connections", s.Connections())
			}
		})
	}
}

// Parts that have arrived whole before the node was lost are not sent again.
func TestPartsThatHaveArrivedStay(t *testing.T) {
	t.Parallel()
	first, second := nightly(t, 2<<20, 700_000)
	e := newEnvironment(t, "2.15.0")
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, nil, []*sshtest.Server{s}, h)
	sentBy(t, e, opt, first)
	inbox := filepath.Join(e.dir, ".dsbuild", "inbox")
	name := filepath.Base(second[0].Path) + ".parts"
	var lacks []byte
	count := &counting{Dialer: opt.Dialer, before: func(up remote.Upload) error {
		in, err := up.Open()
		if err != nil {
			return err
		}
		defer in.Close()
		lacks, err = io.ReadAll(in)
		return errorsOf(err, errors.New("no further"))
	}}
	opt.Dialer, opt.Wheels = count, second
	if n := run(t, context.Background(), opt).Nodes[0]; n.Status != deploy.Failed || len(lacks) < 700_000 {
		t.Errorf("%+v, %d bytes", n, len(lacks))
	}
	if err := errorsOf(os.MkdirAll(inbox, 0o700), os.WriteFile(filepath.Join(inbox, name), lacks, 0o600)); err != nil {
		t.Fatal(err)
	}
	count.before = func(remote.Upload) error {
		if st, err := os.Stat(filepath.Join(inbox, name+remote.PartSuffix)); err != nil || st.Size() != int64(len(lacks)) {
			t.Errorf("what had arrived: %v, %v", st, err)
		}
		return nil
	}
	sentBy(t, e, opt, second)
}

// The agent finds the same parts in a file as the driver, however it was written.
func TestBothSidesSplitAlike(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const script = `
import io, lzma, sys, zipfile
class Pipe(io.RawIOBase):
    def __init__(self, f): self.f = f
    def writable(self): return True
    def write(self, b): return self.f.write(b)
for kind in "file", "pipe", "wide", "stored":
    out = open(sys.argv[1] + "/" + kind + ".whl", "wb")
    with zipfile.ZipFile(Pipe(out) if kind == "pipe" else out, "w", zipfile.ZIP_STORED if kind == "stored" else zipfile.ZIP_DEFLATED) as z:
        for i in range(3):
            with z.open("pkg/%d.py" % i, "w", force_zip64=kind == "wide") as f: f.write(b"%d" % i * 5000)
    out.close()
with open(sys.argv[1] + "/a.whl.bytecode.xz", "wb") as f:
    f.write(b"".join(lzma.compress(b"%d" % i * 500) for i in range(4)))
`
	if out, err := exec.Command("python3", "-c", script, dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	e := newEnvironment(t, "")
	for name, many := range map[string]int{"file.whl": 4, "pipe.whl": 4, "wide.whl": 4, "stored.whl": 4, "a.whl.bytecode.xz": 4} {
		path := filepath.Join(dir, name)
		parts, err := wheel.Parts(path)
		if err != nil || len(parts) != many {
			t.Errorf("%s: %d parts, %v", name, len(parts), err)
		}
		var want strings.Builder
		for _, p := range parts {
			fmt.Fprintf(&want, "%x %d %d\n", p.Tag, p.Offset, p.Size)
		}
		got := agentDo(t, e, "", fmt.Sprintf("for tag, part in sorted(kept_parts(%q).items(), key=lambda p: p[1]):\n    print(tag.hex(), *part)\n", path))
		if got != want.String() {
			t.Errorf("%s: the agent has\n%sthe driver\n%s", name, got, want.String())
		}
	}
}

// A wheel is not kept where the next of its size would not find room.
func TestNothingIsKeptWithoutRoom(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t, "")
	for room, want := range map[string]string{"1": "['deepspeed.whl']", "1 << 62": "none"} {
		got := agentDo(t, e, "", `
for folder in (INBOX, WHEEL):
    os.makedirs(folder, exist_ok=True)
env = Environment()
env.dir = os.path.join(HOME, "run-1")
os.makedirs(env.dir)
open(os.path.join(WHEEL, "bytecode.xz"), "w").close()
path = os.path.join(INBOX, "a.whl")
open(path, "w").close()
env.used = {"deepspeed.whl": path}
env.keep_uploads(`+room+`)
print(os.listdir(WHEEL) if exists(WHEEL) else "none")
env.keep_uploads(`+room+`)  # the folder is there already: that must not matter
shutil.rmtree(HOME)
`)
		if strings.TrimSpace(got) != want {
			t.Errorf("with room for %s: %s", room, got)
		}
	}
}

// A node can say only of parts that there are, each once, that it lacks them.
func TestWhatANodeLacksIsBounded(t *testing.T) {
	t.Parallel()
	parts := []wheel.Part{{Offset: 0, Size: 10}, {Offset: 10, Size: 5}, {Offset: 15, Size: 1}}
	for _, c := range []struct {
		missing [][2]int
		want    int64 // -1: refused
	}{
		{nil, 0}, {[][2]int{{0, 1}}, 10}, {[][2]int{{0, 1}, {2, 3}}, 11}, {[][2]int{{0, 3}}, 16},
		{[][2]int{{0, 4}}, -1}, {[][2]int{{-1, 1}}, -1}, {[][2]int{{1, 1}}, -1}, {[][2]int{{2, 1}}, -1},
		{[][2]int{{0, 2}, {1, 3}}, -1}, {[][2]int{{0, 1}, {0, 1}}, -1}, {[][2]int{{1 << 40, 1 << 41}}, -1},
	} {
		got, err := deploy.Lacking(parts, c.missing)
		if (err != nil) != (c.want < 0) || err == nil && got != c.want {
			t.Errorf("%v: %d, %v", c.missing, got, err)
		}
	}
}
