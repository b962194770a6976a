package engine

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// container returns the container client of an address, the container in which the engine runs, and the
// image from which the Dagger client starts it: "" for a container that the user started.
func (e Engine) container() (client, name, image string) {
	scheme, ref, _ := strings.Cut(e.Address, "://")
	kind, client, _ := strings.Cut(scheme, "+")
	ref, query, _ := strings.Cut(ref, "?")
	switch kind {
	case "container":
		return client, ref, ""
	case "image":
		options, err := url.ParseQuery(query)
		if err == nil && options.Has("container") {
			return client, options.Get("container"), ref
		}
		_, id, pinned := strings.Cut(ref, "@sha256:")
		if !pinned {
			_, id, _ = strings.Cut(ref[strings.LastIndexByte(ref, '/')+1:], ":")
		} else if len(id) > 16 {
			id = id[:16]
		}
		return client, "dagger-engine-" + cmp.Or(id, "latest"), ref // as the Dagger client names it
	}
	return "", "", ""
}

// Watch looks at the engine's container, after each pause. It returns an error once the container
// does not stay up: three looks found that it waits for a restart, was restarted since the look
// before, or has ended and the Dagger client will not start it. Watch returns nil if ctx ends
// first, or for an engine in no container.
func (e Engine) Watch(ctx context.Context, pause time.Duration) error {
	client, name, image := e.container()
	if client == "" {
		return nil
	}
	down := []string{"restarting"}
	if image == "" {
		down = append(down, "exited", "stopped")
	}
	for known, failed := "", 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		out, err := exec.CommandContext(ctx, client, "container", "inspect",
			"--format", "{{.State.Status}} {{.RestartCount}}", name).Output()
		if err != nil {
			continue // the Dagger client has not made it yet
		}
		status, restarts, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
		if slices.Contains(down, status) || known != "" && known != restarts {
			failed++
		}
		if known = restarts; failed == 3 {
			return fmt.Errorf("container %s does not stay up: %s, %s restarts", name, status, restarts)
		}
	}
}

// everydayOutput matches the lines of an engine's start and end, which surround the error that ended it.
var everydayOutput = regexp.MustCompile(`(?m)^.*(level=(debug|info)\b|telemetry).*$`)

// Explain adds a remedy to an error of the Dagger client. If answers is set, the engine still answers: then
// only a full disk and a lack of rights are faults of its container.
func (e Engine) Explain(err error, answers bool) error {
	if err == nil {
		return nil
	}
	client, name, image := e.container()
	if client != "" && !answers { // the Dagger client reports only that its engine does not start
		ctx, cancel := context.WithTimeout(context.Background(), daemonTime)
		defer cancel()
		out, failed := exec.CommandContext(ctx, client, "logs", "--tail", "50", name).CombinedOutput()
		if said := lastLine(everydayOutput.ReplaceAllString(string(out), "")); failed == nil && said != "" {
			err = fmt.Errorf("%w; last output of the engine: %.300s", err, said)
		}
	}
	said := strings.ReplaceAll(strings.ToLower(err.Error()), "--privileged", "") // of the Dagger client's own command
	shows := func(signs ...string) bool {
		return slices.ContainsFunc(signs, func(sign string) bool { return strings.Contains(said, sign) })
	}
	again := fmt.Sprintf("%s rm -fv %s", client, name)
	if image == "" {
		again = fmt.Sprintf("%s restart %s", client, name) // its cache and its options are the user's
	}
	switch {
	case shows("dl.dagger.io"):
		return fault.WithHint(err, "on a machine with internet access, extract the dagger program from %s; "+
			"copy it to %s, or set %s=/path/dagger (docs/build.md)",
			cliURL(), downloadedCLI(), CLIVariable)
	case client == "":
		return err
	case shows("no space left on device", "disk quota exceeded"):
		return fault.WithHint(err, "the disk of %[1]s is full: check %[1]s system df, "+
			"free space with %[1]s system prune, or move its data directory; the engine needs 20 GB", client)
	case shows("operation not permitted"), !answers && shows("permission denied", "privileged"):
		return fault.WithHint(err, "the engine needs a privileged container, "+
			"which %[1]s does not allow here (rootless, user namespaces, a security policy): "+
			"use %[1]s as root, an engine elsewhere (--engine), or no engine (--builder host)", client)
	case answers:
		return err
	case shows("incompatible engine version", "exec format error") && image == "":
		return fault.WithHint(err, "container %s runs an engine other than version %s, or one for another CPU; "+
			"let dsbuild start the right engine: --engine image+%s://%s", name, Version, client, Image)
	case shows("incompatible engine version", "exec format error"):
		return fault.WithHint(err, "the container runs an engine other than version %s, or one for another CPU; "+
			"remove the container, its cache and its image, which dsbuild pulls again: %s && %s rmi %s",
			Version, again, client, image)
	case shows("registry.dagger.io") && image != "":
		return fault.WithHint(err, "load the image %[2]s: %[1]s load -i engine.tar "+
			"(written by %[1]s save on a machine that has it, or by make engine and bin/ci/engine image engine.tar), "+
			"or pull it from the site's registry and tag it with %[1]s tag (docs/build.md); "+
			"without an engine: --builder host", client, image)
	}
	return fault.WithHint(err,
		"show the engine's output: %s logs %s; restart it: %s; or build without an engine: --builder host",
		client, name, again)
}
