package engine

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

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

// podman without root is not chosen, but taken where it is asked for. On Linux nothing of it is started, for a process would stay.
func TestPodmanWithoutRoot(t *testing.T) {
	started := filepath.Join(t.TempDir(), "started")
	fakeClient(t, "podman", `touch '`+started+`'; echo 'rootless: true'`)
	f := nowhere(t)
	f.Root = false
	f.LookPath = func(name string) (string, error) {
		if name != "podman" {
			return "", os.ErrNotExist
		}
		return name, nil
	}
	if _, err := f.Find(t.Context()); err == nil || !strings.Contains(err.Error(), "podman: runs without root") {
		t.Error(err)
	}
	if _, err := os.Stat(started); err == nil && runtime.GOOS == "linux" {
		t.Error("podman was started")
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
	if err == nil || !strings.Contains(err.Error(), "docker: the daemon denies access to this user (permission denied") || !strings.Contains(fault.Hint(err), "usermod -aG docker") {
		t.Errorf("%v, hint %q", err, fault.Hint(err))
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
	const crash = "panic: index out of range"
	for _, c := range []struct{ address, said, want string }{
		{"", `Get "https://dl.dagger.io/x": no such host`, CLIVariable},
		{"image+podman://r/e:1", "failed to unpack: operation not permitted", "use podman as root"},
		{"image+docker://r/e:1", "incompatible engine version v0.18.3", "docker rm -fv dagger-engine-1 && docker rmi r/e:1"},
		{"image+docker://" + Image, "incompatible engine version v0.18.3", "docker rm -fv dagger-engine-" + Version + " && docker rmi " + Image},
		{"container+podman://mine", "incompatible engine version v0.18.3", "container mine runs"},
		{"tcp://host:1", "incompatible engine version v0.18.10", ""},
		{"container+nerdctl://mine", "mkdir /var/lib/x: no space left on device", "nerdctl system prune"},
		{"image+podman://registry.dagger.io/engine:v9", "registry.dagger.io/engine: no such host", "load the image registry.dagger.io/engine:v9: podman load -i"},
		{"image+docker://r/e:1", crash, "docker logs dagger-engine-1; restart it: docker rm -fv dagger-engine-1;"},
		{"image+docker://localhost:5000/e", crash, "docker logs dagger-engine-latest;"},
		{"image+docker://r/e:1@sha256:0123456789abcdef0123", crash, "docker logs dagger-engine-0123456789abcdef;"},
		{"image+docker://r/e:1?container=other", crash, "docker logs other;"},
		{"container+podman://mine", crash, "podman logs mine; restart it: podman restart mine;"},
	} {
		got := fault.Hint(Engine{Address: c.address}.Explain(errors.New(c.said), false))
		if !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%s: %s: hint %q, want %q", c.address, c.said, got, c.want)
		}
		if strings.HasPrefix(c.address, "container+") && (strings.Contains(got, " rm ") || strings.Contains(got, " rmi ")) {
			t.Errorf("%s: %s: the user's own container would be removed: %q", c.address, c.said, got)
		}
	}
}

// An engine that cannot start is restarted again and again, and writes its error to another stream than its notes, so
// any line may be the last.
func TestExplainQuotesTheErrorOfTheEngine(t *testing.T) {
	const start, end = `time="2026-11-29T21:26:22Z" level=info msg="starting dagger engine"`, "telemetry shut down complete"
	const refused = "dagger-engine: install resolv.conf: remount /etc/resolv.conf to upstream alias: operation not permitted"
	for _, lines := range [][]string{
		{start, "shutting down telemetry...", end, refused},
		{start, refused, "shutting down telemetry...", end},
		{refused, end, start},
	} {
		bin := t.TempDir()
		t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
		if err := os.WriteFile(filepath.Join(bin, "docker"), []byte("#!/bin/sh\necho '"+strings.Join(lines, "\n")+"'\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		err := Engine{Address: "image+docker://" + Image}.Explain(errors.New("it does not stay up"), false)
		if want := "it does not stay up; last output of the engine: " + refused; err == nil || err.Error() != want || !strings.Contains(fault.Hint(err), "privileged container") {
			t.Errorf("%q: %v, hint %q; want %q and a hint about a privileged container", lines, err, fault.Hint(err), want)
		}
	}
}

// The page names the release that is run.
func TestPageNamesTheVersion(t *testing.T) {
	text, err := os.ReadFile("../../docs/build.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{Image, filepath.Base(downloadedCLI()), cliURL()} {
		if !strings.Contains(string(text), want) {
			t.Errorf("build.md does not name %s", want)
		}
	}
}
