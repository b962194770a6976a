package daggerbuilder

import (
	"context"
	"fmt"
	"io"
	"os"

	"dagger.io/dagger"

	"github.com/dsbuild/dsbuild/pipeline/engine"
)

// Connect opens a client on an engine that is known to answer. log receives
// what the Dagger client itself has to say.
func Connect(ctx context.Context, e engine.Engine, log io.Writer) (*Builder, func() error, error) {
	steps, err := newReceiver()
	if err != nil {
		return nil, nil, err
	}
	opts := []dagger.ClientOpt{dagger.WithLogOutput(log)}
	for _, v := range append(steps.environment(), [2]string{"DAGGER_NO_NAG", "1"},
		[2]string{"DO_NOT_TRACK", "1"}, [2]string{"DAGGER_NO_UPDATE_CHECK", "1"}) {
		opts = append(opts, dagger.WithEnvironmentVariable(v[0], v[1]))
	}
	if e.Address != "" {
		opts = append(opts, dagger.WithRunnerHost(e.Address))
	}
	if e.CLI != "" {
		// The client takes its program from the environment alone.
		if err := os.Setenv("_EXPERIMENTAL_DAGGER_CLI_BIN", e.CLI); err != nil {
			return nil, nil, err
		}
	}
	client, err := dagger.Connect(ctx, opts...)
	if err != nil {
		steps.close()
		return nil, nil, fmt.Errorf("dagger engine (%s): %w", e.How, err)
	}
	return &Builder{client, steps}, func() error {
		defer steps.close()
		return client.Close()
	}, nil
}
