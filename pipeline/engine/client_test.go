package engine

import (
	"errors"
	"os"
	"path/filepath"
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

// podman without root is not chosen, but taken where it is asked for.
func TestPodmanWithoutRoot(t *testing.T) {
	fakeClient(t, "podman", `echo 'rootless: true'`)
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
		"incompatible engine version v0.18.3":        {Engine{Address: "image+docker://r/e:1"}, "docker rm -fv " + ContainerName},
		"incompatible engine version v0.18.10":       {Engine{Address: "tcp://host:1"}, ""},
		"mkdir /var/lib/x: no space left on device":  {Engine{Address: "container+nerdctl://mine"}, "nerdctl system prune"},
		"registry.dagger.io/engine: no such host":    {Engine{Address: "image+podman://r/e:1"}, "podman load -i"},
		"panic: index out of range":                  {Engine{Address: "image+docker://r/e:1"}, "docker logs"},
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
		"design.md": {Image, ContainerName},
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
