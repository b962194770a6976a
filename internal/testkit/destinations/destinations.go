// Package destinations runs the servers to which the pages upload wheels: moto's S3, pypiserver and an OCI registry. It
// has the clients, too: aws, twine and oras.
package destinations

import (
	"context"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/fulltools"
	"github.com/dsbuild/dsbuild/internal/testkit/python"
	"github.com/dsbuild/dsbuild/internal/testkit/registry"
)

// The clients and servers. One environment has all those of Python.
const oras = "oras.land/oras/cmd/oras@v1.3.6"

func packages() []string {
	return []string{"awscli==1.46.3", "moto[server]==5.2.5", "pypiserver==2.4.2", "twine==7.0.0"}
}

// Destinations are running servers, all empty.
type Destinations struct {
	Registry string   // HOST:PORT of the OCI registry
	Index    string   // the directory of the package index
	Env      []string // for the clients: their directory, the servers and logins
}

// Start starts the servers, which stop with the test. The bucket wheels exists.
func Start(t *testing.T) *Destinations {
	t.Helper()
	env, err := python.Environment(t.Context(), python.EnvironmentOptions{Packages: packages(), Log: func(line string) { t.Log(line) }})
	if err != nil {
		t.Fatal(err)
	}
	bin, tools := filepath.Join(env, "bin"), fulltools.Dir(t)
	run(t, append(os.Environ(), "GOBIN="+tools), "go", "install", oras)

	images, err := registry.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(images)
	t.Cleanup(server.Close)
	_, port, _ := strings.Cut(server.Listener.Addr().String(), ":")
	d := &Destinations{Registry: "localhost:" + port, Index: t.TempDir()} // oras uses HTTP for localhost alone

	store := start(t, filepath.Join(bin, "moto_server"), "-H", "127.0.0.1", "-p")
	index := start(t, filepath.Join(bin, "pypi-server"), "run", "-i", "127.0.0.1", "-P", ".", "-a", ".", "--disable-fallback", d.Index, "-p")
	d.Env = []string{
		"PATH=" + strings.Join([]string{bin, tools, os.Getenv("PATH")}, string(os.PathListSeparator)),
		"AWS_ENDPOINT_URL=" + store, "AWS_REGION=us-east-1", "AWS_ACCESS_KEY_ID=key", "AWS_SECRET_ACCESS_KEY=secret",
		"TWINE_REPOSITORY_URL=" + index, "TWINE_USERNAME=ci", "TWINE_PASSWORD=secret",
	}
	run(t, append(os.Environ(), d.Env...), filepath.Join(bin, "aws"), "s3", "mb", "s3://wheels")
	return d
}

func run(t *testing.T, env []string, program string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = env
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%q: %v\n%s", cmd.Args, err, out)
	}
}

// start starts a server, whose last argument is its port, and returns its URL once it listens.
func start(t *testing.T, program string, args ...string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host := l.Addr().String()
	l.Close()
	_, port, _ := strings.Cut(host, ":")
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	ctx, stop := context.WithCancel(context.Background())
	server := exec.CommandContext(ctx, program, append(args, port)...)
	server.Stdout, server.Stderr = log, log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(); _ = server.Wait() })
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if c, err := net.Dial("tcp", host); err == nil {
			c.Close()
			return "http://" + host
		}
	}
	text, _ := os.ReadFile(log.Name()) // for the message
	t.Fatalf("%s does not listen on %s: %s", filepath.Base(program), host, text)
	return ""
}
