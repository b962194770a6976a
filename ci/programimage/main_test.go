//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/registry"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
)

// The image is pushed to a registry and pulled for this machine. The program runs in it, with nothing else there, as
// the image's user and as one that the image does not know. The same programs give the same image.
func TestProgramImage(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	program := needs.Program(t, root)
	t.Chdir(root)
	release := t.TempDir()
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	write(t, filepath.Join(release, "metadata.json"), map[string]string{"version": "0.1.0", "commit": "c0ffee"})
	made := []map[string]string{
		{"type": "Binary", "goos": "linux", "goarch": runtime.GOARCH, "path": program},
		{"type": "Binary", "goos": "linux", "goarch": other, "path": "LICENSE"}, // any file: nothing runs it
		{"type": "Binary", "goos": "darwin", "goarch": "arm64", "path": "gone"},
		{"type": "Archive", "goos": "linux", "goarch": runtime.GOARCH, "path": "gone"},
	}
	write(t, filepath.Join(release, "artifacts.json"), made)
	at := time.Unix(1764190000, 0).UTC()
	digest, err := writeImage(release, at)
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(made)
	write(t, filepath.Join(release, "artifacts.json"), made)
	if again, err := writeImage(release, at); err != nil || again != digest {
		t.Errorf("the same programs give %s (%v), want %s again", again, err, digest)
	}

	pulled := pushAndPull(t, filepath.Join(release, "image"), digest)
	config, err := pulled.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if got := config.Config.Labels["org.opencontainers.image.version"]; got != "0.1.0" || config.Architecture != runtime.GOARCH || !config.Created.Equal(at) {
		t.Errorf("version %q for %s of %s; want 0.1.0 for %s of %s", got, config.Architecture, config.Created, runtime.GOARCH, at)
	}
	if os.Getuid() != 0 {
		needs.Missing(t, "only root can change the root folder")
	}
	inside := t.TempDir()
	unpack := exec.CommandContext(t.Context(), "tar", "-x", "-C", inside)
	unpack.Stdin = mutate.Extract(pulled)
	if out, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, file := range []string{"usr/share/doc/dsbuild/copyright", "usr/share/doc/dsbuild/NOTICE", "etc/ssl/certs/ca-certificates.crt"} {
		if info, err := os.Stat(filepath.Join(inside, file)); err != nil || info.Size() < 200 {
			t.Errorf("%s: %v, %v; want a text", file, info, err)
		}
	}
	if err := os.Mkdir(filepath.Join(inside, "proc"), 0o755); err != nil {
		t.Fatal(err)
	}
	node := sshtest.Start(t, sshtest.Options{Name: "gpu1"})
	for to, from := range map[string]string{"key": node.IdentityFile, "known_hosts": node.KnownHosts} {
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(inside, "work", to), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	inventory := fmt.Sprintf("known_hosts: known_hosts\nnodes: [{hosts: gpu1, address: %s, port: %d, identity_file: key}]\n", node.Address, node.Port)
	if err := os.WriteFile(filepath.Join(inside, "work/inventory.yaml"), []byte(inventory), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, user := range []int{account, 1000} {
		for _, name := range []string{"key", "known_hosts"} {
			if err := os.Chown(filepath.Join(inside, "work", name), user, user); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range []struct {
			words, want string
			code        int
		}{
			{"version", "dsbuild ", 0},
			{"gpus", "A100", 0},
			{"wheel --gpu A100 --dry-run", "archs 8.0", 0},
			{"launch slurm -- train.py", "#SBATCH", 0},
			{fmt.Sprintf("launch jax -o job%d -- train.py", user), "dsbuild_jax.py", 0}, // in the working folder
			{"verify inventory.yaml", "gpu1: no DeepSpeed ", 3},                         // over SSH
		} {
			cmd := exec.CommandContext(t.Context(), "unshare", append([]string{
				"--mount", "--pid", "--fork", "--root", inside, "--mount-proc", "--wd", config.Config.WorkingDir,
				"--setgid", fmt.Sprint(user), "--setuid", fmt.Sprint(user),
			}, append(config.Config.Entrypoint, strings.Fields(c.words)...)...)...)
			cmd.Env = config.Config.Env
			if user != account {
				cmd.Env = append(cmd.Env, "USER=train") // its name on the node
			}
			said, err := cmd.CombinedOutput()
			if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != c.code || !strings.Contains(string(said), c.want) {
				t.Errorf("user %d: dsbuild %s: %v: %s; want code %d and %q", user, c.words, err, said, c.code, c.want)
			}
		}
	}
}

// pushAndPull pushes a layout to a registry, as crane push --index does, and pulls the image for this machine.
func pushAndPull(t *testing.T, folder string, want v1.Hash) v1.Image {
	t.Helper()
	handler, err := registry.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	ref, err := name.ParseReference(strings.TrimPrefix(server.URL, "http://") + "/dsbuild/dsbuild:0.1.0")
	if err != nil {
		t.Fatal(err)
	}
	index, err := layout.ImageIndexFromPath(folder)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(ref, index); err != nil {
		t.Fatal(err)
	}
	if at, err := remote.Head(ref); err != nil || at.Digest != want {
		t.Fatalf("the registry has %v (%v); want %s", at, err, want)
	}
	image, err := remote.Image(ref, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}))
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func write(t *testing.T, file string, content any) {
	t.Helper()
	text, err := json.Marshal(content)
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
