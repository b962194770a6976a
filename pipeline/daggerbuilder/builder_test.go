package daggerbuilder

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"dagger.io/dagger"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/engine"
)

// line is a connection to an engine that answers its version, or that is lost.
type line struct{ lost bool }

func (l line) Host() string { return "engine" }
func (l line) Close() error { return nil }

func (l line) Do(*http.Request) (*http.Response, error) {
	if l.lost {
		return nil, errors.New("connection refused")
	}
	body := io.NopCloser(strings.NewReader(`{"data": {"version": "v1"}}`))
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: body}, nil
}

// A step that ends without a program's exit code has the engine's container as its reason only if the engine
// is lost, or said so.
func TestStepErrorOfAnEngineThatAnswers(t *testing.T) {
	const logs = "docker logs mine"
	for _, c := range []struct {
		lost       bool
		said, want string
	}{
		{false, "pull access denied, repository does not exist", ""},
		{false, "open /root/base.tar: permission denied", ""},
		{false, "exec format error", ""},
		{false, "write /var/lib/dagger/x: no space left on device", "docker system df"},
		{false, "failed to unpack: operation not permitted", "privileged container"},
		{true, "pull access denied, repository does not exist", logs},
		{true, "unexpected EOF", logs},
	} {
		client, err := dagger.Connect(t.Context(), dagger.WithConn(line{c.lost}))
		if err != nil {
			t.Fatal(err)
		}
		steps, err := newReceiver()
		if err != nil {
			t.Fatal(err)
		}
		r := &run{Work: pipeline.Work{Log: io.Discard, Report: &record{}}, Builder: &Builder{
			client: client, steps: steps, engine: engine.Engine{Address: "container+docker://mine"},
		}}
		err = r.reportStep(t.Context(), "try", "try", func(context.Context) error { return errors.New(c.said) })
		steps.close()
		got := fault.Hint(err)
		if err == nil || !strings.Contains(err.Error(), c.said) || !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("lost %v: %v; hint %q, want %q", c.lost, err, got, c.want)
		}
	}
}
