package engine

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/adrg/xdg"
)

// Version is the Dagger release of the client library, whose engine is run.
const Version = "v0.21.7"

// Image is the engine's image, by the name under which the Dagger client knows it.
const Image = "registry.dagger.io/engine:" + Version

// namePrefix begins the name of each engine's container, as the Dagger client
// gives it: both use the same container.
const namePrefix = "dagger-engine-"

// clientSteps is how long a container client may take for one command that
// neither pulls nor starts anything.
const clientSteps = 10 * time.Second

// Container is an engine's container, run by docker, podman or nerdctl.
type Container struct {
	Client string // the program: docker, podman or nerdctl
	Name   string
	Image  string // "" for a container that the user has made
}

// containerKinds maps each scheme of an address to its meaning and to its container client, ""
// for any client.
func containerKinds() map[string][2]string {
	kinds := map[string][2]string{"image": {"image", ""}, "container": {"container", ""}}
	for _, kind := range []string{"image", "container"} {
		for _, client := range containerClients() {
			kinds[kind+"+"+client] = [2]string{kind, client}
		}
	}
	return kinds
}

// containerClients are the programs that run containers, in the order in which
// dsbuild looks for them.
func containerClients() []string { return []string{"docker", "podman", "nerdctl"} }

// Container returns the container that the engine runs in, if its address names
// one.
func (e Engine) Container() (Container, bool) {
	u, err := url.Parse(e.Address)
	if err != nil {
		return Container{}, false
	}
	kind, ok := containerKinds()[u.Scheme]
	if !ok {
		return Container{}, false
	}
	if kind[0] == "image" {
		image := u.Host + u.Path
		return Container{Client: kind[1], Name: namePrefix + imageID(image), Image: image}, true
	}
	return Container{Client: kind[1], Name: u.Host}, true
}

// imageID returns the part of a container's name by which the Dagger client identifies the image:
// the first digits of its digest, or its tag.
func imageID(image string) string {
	if _, digest, ok := strings.Cut(image, "@sha256:"); ok {
		return digest[:min(16, len(digest))]
	}
	name := image[strings.LastIndexByte(image, '/')+1:]
	if _, tag, ok := strings.Cut(name, ":"); ok {
		return tag
	}
	return "latest"
}

// Address returns the address at which the Dagger client reaches the running container.
func (c Container) Address() string { return "container+" + c.Client + "://" + c.Name }

// Up starts the container and waits until the engine in it answers. It pulls the image if it is
// missing. log receives the progress.
func (c Container) Up(ctx context.Context, log func(string)) error {
	state, err := c.inspect(ctx)
	if err != nil {
		return err
	}
	switch {
	case state.Running:
	case !state.missing:
		log("starting " + c.Name)
		err = c.command(ctx, "start", c.Name)
	case c.Image == "":
		return c.failed("does not exist", nil)
	default:
		if err := c.pull(ctx, log); err != nil {
			return err
		}
		log("starting " + c.Name + " from " + c.Image)
		err = c.create(ctx)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return c.failed("cannot be started: "+err.Error(), nil)
	}
	return c.await(ctx, log)
}

// create makes and starts the container. If another dsbuild made it at the same time, create
// accepts that one.
func (c Container) create(ctx context.Context) error {
	err := c.command(ctx, c.runArgs()...)
	if err != nil && (strings.Contains(err.Error(), "is already in use") || strings.Contains(err.Error(), "is already used")) {
		return nil
	}
	return err
}

// runArgs returns the command line that makes the container. The Dagger client would use the same
// one, except for its debugging port.
func (c Container) runArgs() []string {
	args := []string{"run", "--name", c.Name, "-d", "--restart", "always", "--privileged", "-v", "/var/lib/dagger"}
	for _, mount := range [][2]string{{"engine.json", "/etc/dagger/engine.json"}, {"ca-certificates", "/usr/local/share/ca-certificates"}} {
		from := filepath.Join(xdg.ConfigHome, "dagger", mount[0])
		if _, err := os.Stat(from); err == nil {
			args = append(args, "-v", from+":"+mount[1])
		}
	}
	return append(args, c.Image)
}

// pull fetches the image if it is missing, and logs the progress.
func (c Container) pull(ctx context.Context, log func(string)) error {
	err := c.command(ctx, "image", "inspect", "--format", "{{.Id}}", c.Image)
	var said *clientError
	if err == nil || !errors.As(err, &said) || ctx.Err() != nil {
		return err
	}
	log("pulling " + c.Image)
	cmd := exec.CommandContext(ctx, c.Client, "pull", c.Image)
	cmd.WaitDelay = time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	followPull(out, c.Image, log)
	if err := cmd.Wait(); ctx.Err() != nil {
		return context.Cause(ctx)
	} else if err != nil {
		return &ImageError{Container: c, Said: clientWords(stderr.String(), err)}
	}
	return nil
}

// followPull logs how many of an image's layers have arrived. docker reports the begin and the
// end of each; podman and nerdctl report less, and followPull passes their lines on.
func followPull(r io.Reader, image string, log func(string)) {
	layers, done := map[string]bool{}, 0
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		id, what, _ := strings.Cut(lines.Text(), ": ")
		switch what {
		case "Pulling fs layer", "Already exists":
			layers[id] = true
			if what == "Already exists" {
				done++
			}
		case "Pull complete":
			done++
		case "Waiting", "Verifying Checksum", "Download complete":
			continue
		default:
			log("pulling " + image + ": " + lines.Text())
			continue
		}
		log(fmt.Sprintf("pulling %s: %d of %d layers", image, done, len(layers)))
	}
	_, _ = io.Copy(io.Discard, r) // a line too long to scan must not block the client
}

// clientError is the error text of a container client.
type clientError struct{ said string }

func (e *clientError) Error() string { return e.said }

// command runs the container client to its end.
func (c Container) command(ctx context.Context, args ...string) error {
	_, err := c.output(ctx, args...)
	return err
}

// output runs the container client and returns its standard output. If the client fails, the
// error is a *clientError with the client's own text.
func (c Container) output(ctx context.Context, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	err := c.run(ctx, &stdout, &stderr, args...)
	return stdout.String(), err
}

// combined runs the container client and returns its standard output and standard error together.
func (c Container) combined(ctx context.Context, args ...string) (string, error) {
	var all bytes.Buffer
	err := c.run(ctx, &all, &all, args...)
	return all.String(), err
}

// run runs the container client to its end.
func (c Container) run(ctx context.Context, stdout, stderr *bytes.Buffer, args ...string) error {
	cmd := exec.CommandContext(ctx, c.Client, args...)
	cmd.WaitDelay = time.Second
	cmd.Stdout, cmd.Stderr = stdout, stderr
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &exit):
		return &clientError{clientWords(stderr.String(), err)}
	case err != nil:
		return fmt.Errorf("%s: %w", c.Client, err)
	}
	return nil
}

// clientWords returns the last error in the output of a container client, without the advice
// after it and without podman's warnings.
func clientWords(stderr string, err error) string {
	words := err.Error()
	for line := range strings.Lines(stderr) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "Run '") || strings.HasPrefix(line, "See '") || strings.HasPrefix(line, "time=") {
			continue
		}
		for _, prefix := range []string{"docker: ", "Error response from daemon: ", "Error: "} {
			line = strings.TrimPrefix(line, prefix)
		}
		words = line
	}
	return words
}
