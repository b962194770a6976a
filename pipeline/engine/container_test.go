package engine

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// fakeClient puts a container client into PATH that is a shell script.
func fakeClient(t *testing.T, name, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
}

func TestContainerOfAddress(t *testing.T) {
	for address, want := range map[string]Container{
		"image+docker://" + Image:                        {Client: "docker", Name: "dagger-engine-" + Version, Image: Image},
		"image+docker://r:5000/a/engine":                 {Client: "docker", Name: "dagger-engine-latest", Image: "r:5000/a/engine"},
		"image+podman://r/e@sha256:0123456789abcdef0123": {Client: "podman", Name: "dagger-engine-0123456789abcdef", Image: "r/e@sha256:0123456789abcdef0123"},
		"container+docker://mine":                        {Client: "docker", Name: "mine"},
		"container+podman://mine":                        {Client: "podman", Name: "mine"},
	} {
		c, ok := Engine{Address: address}.Container()
		if !ok || c.Client != want.Client || c.Name != want.Name || c.Image != want.Image {
			t.Errorf("%s: %+v, %v", address, c, ok)
		}
	}
	for _, address := range []string{"unix:///run/engine.sock", "tcp://host:1", "ssh://host", "kube-pod://pod", ""} {
		if c, ok := (Engine{Address: address}).Container(); ok {
			t.Errorf("%s: %+v", address, c)
		}
	}
	var bad *AddressError
	if err := answers(t.Context(), "image+docker://r/e:1?volume=v"); !errors.As(err, &bad) || !strings.Contains(bad.Hint(), "container+docker://NAME") {
		t.Errorf("an address with options: %v, want an error that names the container of one's own", err)
	}
}

// An address without a client goes to the first one whose daemon answers: the
// Dagger client would give up at a docker without a daemon.
func TestAddressWithoutClient(t *testing.T) {
	fakeClient(t, "docker", "echo 'Cannot connect to the Docker daemon' >&2; exit 1")
	fakeClient(t, "podman", "echo 4.3.1")
	f := NewFinder("image://r/e:1", t.Logf)
	f.Home = t.TempDir()
	if e, err := f.Find(t.Context()); err != nil || e.Address != "image+podman://r/e:1" {
		t.Errorf("%+v, %v", e, err)
	}
	f.Flag = "image+docker://r/e:1"
	if _, err := f.Find(t.Context()); err == nil || !strings.Contains(err.Error(), "docker: client without a daemon") {
		t.Error(err)
	}
}

// podman without root is not chosen, but taken where it is asked for.
func TestPodmanWithoutRoot(t *testing.T) {
	fakeClient(t, "podman", `case $1 in version) echo 4.3.1;; info) echo true;; esac`)
	f := nowhere(t)
	f.LookPath = func(name string) (string, error) {
		if name != "podman" {
			return "", os.ErrNotExist
		}
		return name, nil
	}
	if _, err := f.Find(t.Context()); err == nil || !strings.Contains(err.Error(), "podman: runs without root") {
		t.Error(err)
	}
	f.Flag = "image+podman://r/e:1"
	if e, err := f.Find(t.Context()); err != nil || e.Address != f.Flag {
		t.Errorf("%+v, %v", e, err)
	}
}

func TestUserOutsideTheGroup(t *testing.T) {
	fakeClient(t, "docker", "echo 'permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock' >&2; exit 1")
	f := nowhere(t)
	f.LookPath = func(name string) (string, error) {
		if name != "docker" {
			return "", os.ErrNotExist
		}
		return name, nil
	}
	_, err := f.Find(t.Context())
	if err == nil || !strings.Contains(err.Error(), "docker: its daemon refuses this user (permission denied") || !strings.Contains(fault.Hint(err), "usermod -aG docker") {
		t.Errorf("%v, hint %q", err, fault.Hint(err))
	}
}

// at is a state that is seen some time after the start.
type at struct {
	after time.Duration
	containerState
}

func TestJudge(t *testing.T) {
	runs := func(restarts int) containerState { return containerState{Running: true, restarts: restarts} }
	ended := func(restarts int) containerState {
		return containerState{ExitCode: 3, restarts: restarts, FinishedAt: "now"}
	}
	for name, c := range map[string]struct {
		seen []at
		want string
	}{
		"runs":            {[]at{{0, runs(0)}, {89 * time.Second, runs(0)}}, ""},
		"does not answer": {[]at{{0, runs(0)}, {90 * time.Second, runs(0)}}, "runs, but its engine has not answered"},
		"one restart":     {[]at{{0, runs(0)}, {time.Second, ended(0)}, {2 * time.Second, runs(1)}, {20 * time.Second, runs(1)}}, ""},
		"restarts":        {[]at{{0, runs(0)}, {time.Second, ended(1)}, {5 * time.Second, runs(2)}, {6 * time.Second, runs(4)}}, "exit code 3, and again after each of 4 restarts"},
		"ended":           {[]at{{0, ended(0)}, {4 * time.Second, ended(0)}, {5 * time.Second, ended(0)}}, "ended with exit code 3"},
		"memory":          {[]at{{0, containerState{ExitCode: 137, OOMKilled: true}}, {5 * time.Second, containerState{ExitCode: 137, OOMKilled: true}}}, "exit code 137, killed for lack of memory"},
		"paused":          {[]at{{0, containerState{Running: true, Status: "paused"}}}, "is paused"},
		"not shown yet":   {[]at{{0, containerState{missing: true}}, {2 * time.Second, runs(0)}, {30 * time.Second, runs(0)}}, ""},
		"removed":         {[]at{{0, runs(0)}, {time.Second, containerState{missing: true}}, {6 * time.Second, containerState{missing: true}}}, "was removed"},
	} {
		began := time.Now()
		w := waiting{began: began, first: c.seen[0].containerState}
		got := ""
		for i, s := range c.seen {
			if got = w.judge(s.containerState, began.Add(s.after)); got != "" && i < len(c.seen)-1 {
				t.Errorf("%s: given up after %s: %s", name, s.after, got)
			}
		}
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// What containers and daemons say leads to what can be done about it.
func TestContainerHints(t *testing.T) {
	c := Container{Client: "podman", Name: "dagger-engine-1", Image: "r/e:1"}
	for said, want := range map[string]string{
		"mkdir /var/lib/dagger/worker: no space left on device":                           "podman system prune",
		"runc run failed: unable to apply caps: operation not permitted":                  "privileged container",
		"Error: privileged mode is incompatible with user namespaces":                     "privileged container",
		"mkdir /sys/fs/cgroup/cpu/buildkit: read-only file system":                        "control groups",
		"exec /usr/local/bin/dagger-engine: exec format error":                            "podman rm -fv dagger-engine-1 && podman rmi r/e:1",
		"flag provided but not defined: -debugaddr":                                       "another version",
		"ended with exit code 137, killed for lack of memory":                             "more memory",
		"Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?": "start podman again",
		"panic: runtime error: index out of range":                                        "podman logs dagger-engine-1",
		"write /var/lib/dagger/x: disk quota exceeded; mount: operation not permitted":    "podman system df",
		"crun: setrlimit `RLIMIT_NOFILE`: Operation not permitted: OCI permission denied": "privileged container",
		"docker: Error response from daemon: authorization denied by plugin: not allowed": "privileged container",
		"is paused": "podman unpause dagger-engine-1",
		"fork/exec /usr/sbin/iptables: cannot allocate memory": "more memory",
		"does not exist": "podman ps -a",
	} {
		if got := fault.Hint(c.failed("does not start", []string{said})); !strings.Contains(got, want) {
			t.Errorf("%s: hint %q, want %q", said, got, want)
		}
	}
	full := &ImageError{c, "write /var/lib/docker/tmp/x: no space left on device"}
	if !strings.Contains(fault.Hint(full), "system prune") {
		t.Error(fault.Hint(full))
	}
	if away := (&ImageError{c, "no such host"}); !strings.Contains(fault.Hint(away), "podman load -i") {
		t.Error(fault.Hint(away))
	}
}

func TestClientWords(t *testing.T) {
	for stderr, want := range map[string]string{
		"docker: Error response from daemon: no.\nSee 'docker run --help'.\n":       "no.",
		"time=\"1\" level=warning msg=x\nError: runc: no\ntime=\"2\" level=error\n": "runc: no",
		"time=\"1\" level=warning msg=x\n":                                          "failed",
	} {
		if got := clientWords(stderr, errors.New("failed")); got != want {
			t.Errorf("%q: %q, want %q", stderr, got, want)
		}
	}
}

// A container client's own words are in the error, without its advice.
func TestContainerCannotBeStarted(t *testing.T) {
	fakeClient(t, "docker", `case "$1 $2" in
"container inspect") echo "Error: No such container: $3" >&2; exit 1;;
"image inspect") exit 0;;
"run --name") echo "docker: Error response from daemon: overlay: no space left on device" >&2; echo "Run 'docker run --help' for more information" >&2; exit 125;;
esac; exit 9`)
	c, _ := Engine{Address: "image+docker://r/e:1"}.Container()
	err := c.Up(t.Context(), func(string) {})
	var failed *ContainerError
	if !errors.As(err, &failed) || !strings.HasSuffix(err.Error(), "dagger-engine-1 cannot be started: overlay: no space left on device") {
		t.Error(err)
	}
}

func TestPullSaysHowFarItIs(t *testing.T) {
	var lines []string
	out := "v1: Pulling from engine\na: Already exists\nb: Pulling fs layer\nc: Pulling fs layer\nb: Verifying Checksum\nb: Download complete\nb: Pull complete\nc: Pull complete\nDigest: sha256:1\n"
	followPull(strings.NewReader(out), "r/e:1", func(line string) { lines = append(lines, line) })
	for _, want := range []string{"pulling r/e:1: 1 of 1 layers", "pulling r/e:1: 2 of 3 layers", "pulling r/e:1: 3 of 3 layers"} {
		if !slices.Contains(lines, want) {
			t.Errorf("%q is not in %q", want, lines)
		}
	}
}

// Where the dagger program comes from is said before it is downloaded.
func TestDaggerProgram(t *testing.T) {
	var said []string
	f := nowhere(t)
	f.Note = func(format string, _ ...any) { said = append(said, format) }
	if cli, err := f.findCLI(); err != nil || cli != "" || len(said) != 1 {
		t.Errorf("%q, %v, said %q", cli, err, said)
	}
	f.CLI = "/none/dagger"
	if _, err := f.findCLI(); err == nil || !strings.Contains(err.Error(), CLIVariable+"=/none/dagger") || fault.Hint(err) == "" {
		t.Error(err)
	}
	f.CLI = filepath.Join(mkdir(t, f.Home, "bin"), "dagger")
	if err := os.WriteFile(f.CLI, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if cli, err := f.findCLI(); err != nil || cli != f.CLI {
		t.Errorf("%q, %v", cli, err)
	}
}

func TestExplain(t *testing.T) {
	for said, c := range map[string]struct {
		e    Engine
		want string
	}{
		`Get "https://dl.dagger.io/x": no such host`: {Engine{}, CLIVariable},
		"failed to unpack: operation not permitted":  {Engine{Address: "image+podman://r/e:1"}, "podman that runs as root"},
		"incompatible engine version v0.18.3":        {Engine{Address: "image+docker://r/e:1"}, "docker rm -fv dagger-engine-1 && docker rmi r/e:1"},
		"incompatible engine version v0.18.10":       {Engine{Address: "tcp://host:1"}, ""},
	} {
		if got := fault.Hint(c.e.Explain(errors.New(said))); !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%s: hint %q, want %q", said, got, c.want)
		}
	}
}

// The pages name the release that is run.
func TestPagesNameTheVersion(t *testing.T) {
	for page, want := range map[string][]string{
		"airgap.md": {Image, filepath.Base(downloadedCLI()), cliURL()},
		"design.md": {Image, namePrefix + Version},
	} {
		text, err := os.ReadFile(filepath.Join("..", "..", "docs", page))
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			if !strings.Contains(string(text), w) {
				t.Errorf("%s does not name %s", page, w)
			}
		}
	}
}
