package daggerbuilder

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"dagger.io/dagger"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/pipeline/engine"
)

// Connect opens a client on an engine, which the client starts if it runs in a container. log receives
// the messages of the Dagger client.
func Connect(ctx context.Context, e engine.Engine, log io.Writer) (*Builder, func() error, error) {
	steps, err := newReceiver()
	if err != nil {
		return nil, nil, err
	}
	opts := []dagger.ClientOpt{dagger.WithLogOutput(log), dagger.WithRunnerHost(e.Address)}
	for _, v := range append(steps.environment(), [2]string{"DAGGER_NO_NAG", "1"}, [2]string{"DO_NOT_TRACK", "1"},
		[2]string{"DAGGER_NO_UPDATE_CHECK", "1"}, [2]string{"DAGGER_LEAVE_OLD_ENGINE", "1"}) { // engines of others stay
		opts = append(opts, dagger.WithEnvironmentVariable(v[0], v[1]))
	}
	if e.CLI != "" {
		// The client takes its program only from the environment.
		if err := os.Setenv(engine.CLIVariable, e.CLI); err != nil {
			return nil, nil, err
		}
	}
	client, err := connectWithin(ctx, e, opts)
	if err != nil {
		killSession(steps.url) // it would try for five minutes
		steps.close()
		return nil, nil, e.Explain(fmt.Errorf("dagger engine (%s): %w", e.How, err), false)
	}
	end := func() error {
		defer steps.close()
		return closeWithin(client, closeLimit, steps.url)
	}
	if platform, err := client.DefaultPlatform(ctx); err == nil && platform != containerPlatform {
		_ = end() // the error below has more details
		return nil, nil, fault.New(fault.Usage,
			"use the engine of such a machine (--engine), or build without containers (--builder host)",
			"the Dagger engine (%s) runs on %s, and dsbuild's containers are for %s", e.How, platform, containerPlatform)
	}
	return &Builder{client: client, steps: steps, engine: e}, end, nil
}

// containerPlatform is the platform of all images of toolchains. Those also build for aarch64.
const containerPlatform = "linux/amd64"

// closeLimit bounds the end of a session. A session ends at once, except while the engine is
// being stopped, because the engine then waits for its clients in turn, and after the engine was
// killed.
const closeLimit = 15 * time.Second

// closeWithin closes a client. After limit it kills the client's program, which reports to the
// receiver at address: without its engine that program waits for ever.
func closeWithin(client *dagger.Client, limit time.Duration, address string) error {
	done := make(chan error, 1)
	go func() { done <- client.Close() }()
	select {
	case err := <-done:
		return err
	case <-time.After(limit):
		killSession(address)
		return fmt.Errorf("did not close within %s", limit)
	}
}

// killSession kills the Dagger client's program that reports to the receiver at address. The client
// does not tell the program's process ID; Linux does, and on other systems killSession finds none.
func killSession(address string) {
	variable := []byte("\x00OTEL_EXPORTER_OTLP_ENDPOINT=" + address + "\x00")
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return
	}
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended
		}
		for _, number := range strings.Fields(string(text)) {
			environ, err := os.ReadFile(filepath.Join("/proc", number, "environ"))
			if err != nil || !bytes.Contains(environ, variable) {
				continue
			}
			pid, err := strconv.Atoi(number)
			if err != nil {
				continue
			}
			if p, err := os.FindProcess(pid); err == nil {
				_ = p.Kill() // it may have ended meanwhile
			}
		}
	}
}

// lookPause is the pause between two looks at the container of an engine that does not answer yet.
const lookPause = 2 * time.Second

// connectWithin calls dagger.Connect, but ends when ctx does, or when the engine's container does not
// stay up: the Dagger client itself waits five minutes for an address that answers with something else.
// It closes a client that comes too late.
func connectWithin(ctx context.Context, e engine.Engine, opts []dagger.ClientOpt) (*dagger.Client, error) {
	ctx, cancel := context.WithCancelCause(ctx) // the session lives as long as ctx
	watched, connected := context.WithCancel(ctx)
	defer connected()
	go func() {
		if err := e.Watch(watched, lookPause); err != nil {
			cancel(err)
		}
	}()
	type result struct {
		client *dagger.Client
		err    error
	}
	done := make(chan result, 1)
	go func() {
		client, err := dagger.Connect(ctx, opts...)
		done <- result{client, err}
	}()
	select {
	case r := <-done:
		return r.client, r.err
	case <-ctx.Done():
		go func() {
			if r := <-done; r.client != nil {
				_ = r.client.Close() // the caller has stopped waiting
			}
		}()
		return nil, context.Cause(ctx)
	}
}
