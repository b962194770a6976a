// Package daggerbuilder runs a plan on a Dagger engine.
package daggerbuilder

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"dagger.io/dagger"
	"golang.org/x/sync/errgroup"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/engine"
)

// Builder runs plans through a connected client.
type Builder struct {
	client  *dagger.Client
	steps   *receiver
	engine  engine.Engine
	network pipeline.Network
}

// Name is the builder's name in the manifest.
func (b *Builder) Name() string { return "dagger" }

// ResolveBase replaces an image's tag by its present digest. Only a plan with a digest determines
// the bytes of its base.
func (b *Builder) ResolveBase(ctx context.Context, base pipeline.Base) (pipeline.Base, error) {
	if base.Digest != "" {
		return base, nil
	}
	ref, err := b.client.Container().From(base.Ref).ImageRef(ctx)
	if err != nil {
		return base, b.fetchError(base, err)
	}
	return pipeline.NewBase(ref)
}

// fetchError returns the error for a base that the engine could not fetch: the image does not
// exist, or the registry does not answer.
func (b *Builder) fetchError(base pipeline.Base, err error) error {
	err = fmt.Errorf("base %s: %w", base.Ref, withoutQuery(err))
	if base.File != "" {
		return err
	}
	return fault.WithHint(err,
		"give the engine access to the registry (docs/build.md), or use a root file system tar: --base TAR")
}

// Open makes the images of p in the engine.
func (b *Builder) Open(ctx context.Context, p *pipeline.Plan, w pipeline.Work) (pipeline.Workspace, error) {
	r := &run{
		Builder: b, Work: w, plan: p,
		images: map[pipeline.Image]*dagger.Container{}, outputs: map[string]*dagger.Directory{},
	}
	if w.NoCache {
		r.nonce = rand.Text()
	}
	return r, r.buildImages(ctx)
}

// baseStep is the only step of a build that runs no program.
const baseStep = "base"

// run is one run of a plan; it is a pipeline.Workspace.
type run struct {
	*Builder
	pipeline.Work
	plan  *pipeline.Plan
	nonce string // "" where cached results may be used

	mu      sync.Mutex // for the next two
	images  map[pipeline.Image]*dagger.Container
	outputs map[string]*dagger.Directory
}

// buildImages builds the images of the plan. The images of additional parts are built in the meantime.
func (r *run) buildImages(ctx context.Context) error {
	var rootfs *dagger.File
	err := r.reportStep(ctx, baseStep, "root file system "+r.plan.Base.Ref, func(ctx context.Context) (err error) {
		if r.plan.Base.File == "" {
			_, err = r.client.Container().From(r.plan.Base.Ref).Sync(ctx)
			return err
		}
		rootfs, err = r.rootDirectory(r.plan.Base).Sync(ctx)
		return err
	})
	if err != nil {
		return err
	}
	during, stop := context.WithCancelCause(ctx)
	var others sync.WaitGroup
	defer others.Wait()
	defer stop(nil)
	others.Go(func() {
		if err := r.checkNvcc(during); err != nil {
			stop(err)
		}
	})
	further := make(chan struct{})
	toolkits := ""
	others.Go(func() {
		defer close(further)
		for name := range r.plan.Environments {
			if err := r.buildImage(during, name, pipeline.Toolchain, rootfs); err != nil {
				stop(r.explain(during, string(name), err))
				return
			}
		}
	})
	for _, name := range slices.Sorted(maps.Keys(r.plan.Environments)) {
		tc := r.plan.Environments[name].Toolchain
		toolkits += fmt.Sprintf(", %s (%s)", tc.Toolkit, tc.CUDASource)
	}
	tc := r.plan.Toolchain()
	for _, image := range []struct {
		name  pipeline.Image
		title string
	}{
		{pipeline.Runtime, fmt.Sprintf("Python %s with torch %s", tc.Python, tc.Torch)},
		{pipeline.Toolchain, fmt.Sprintf("gcc and CUDA %s (%s)%s", tc.Toolkit, tc.CUDASource, toolkits)},
	} {
		err := r.reportStep(ctx, string(image.name), image.title, func(context.Context) error {
			err := r.buildImage(during, image.name, image.name, rootfs)
			if image.name == pipeline.Toolchain {
				<-further
			}
			if during.Err() != nil {
				return context.Cause(during)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// buildImage builds the image name, which is a stage of the plan's Dockerfile.
func (r *run) buildImage(ctx context.Context, name, stage pipeline.Image, rootfs *dagger.File) error {
	e := r.plan.Environment(name)
	build := r.client.Directory().WithNewFile("Dockerfile", r.plan.Dockerfile)
	for _, name := range slices.Sorted(maps.Keys(e.Context)) {
		build = build.WithNewFile(name, e.Context[name])
	}
	if rootfs != nil {
		build = build.WithFile(dockerfiles.RootfsName, rootfs)
	}
	if file := r.network.Toolkit(); file != "" && e.Toolchain.CUDASource == compat.Nvcc12 {
		build = build.WithFile(dockerfiles.ToolkitName, r.client.Host().File(file))
	}
	args := []dagger.BuildArg{}
	for _, k := range slices.Sorted(maps.Keys(e.Args)) {
		if e.Args[k] != "" { // the engine takes no empty ones
			args = append(args, dagger.BuildArg{Name: k, Value: e.Args[k]})
		}
	}
	image, err := build.DockerBuild(dagger.DirectoryDockerBuildOpts{
		Target: string(stage), BuildArgs: args, Secrets: []*dagger.Secret{r.siteSecret()},
	}).Sync(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.images[name] = image
	return err
}

// cachedTime is how long the engine may take to find images in its cache.
const cachedTime = 15 * time.Second

// checkNvcc returns an error if nvcc for CUDA 12 cannot be downloaded here, and is not in the engine's cache.
func (r *run) checkNvcc(ctx context.Context) error {
	cached := time.After(cachedTime)
	err := r.network.CheckNvcc(ctx, r.plan)
	if err == nil {
		return nil
	}
	select {
	case <-ctx.Done():
		return nil
	case <-cached:
		return explained{err}
	}
}

// rootDirectory returns the base's root file system tar. The engine flattens an OCI image to one
// tar, because owners are kept there.
func (b *Builder) rootDirectory(base pipeline.Base) *dagger.File {
	file := b.client.Host().File(base.File)
	if !base.OCI {
		return file
	}
	pack := "tar --one-file-system --exclude=./proc --exclude=./sys --exclude=./dev --exclude=./tmp/rootfs.tar " +
		"-C / -cf /tmp/rootfs.tar ."
	return b.client.Container().Import(file).
		WithExec([]string{"sh", "-c", pack}).
		File("/tmp/rootfs.tar")
}

// Run runs commands of the plan in parallel and keeps their output directories. They are reported as one.
func (r *run) Run(ctx context.Context, steps ...pipeline.Step) error {
	return r.reportStep(ctx, steps[0].Name, steps[0].Title, func(ctx context.Context) error {
		all, during := errgroup.WithContext(ctx)
		for _, s := range steps {
			all.Go(func() error { return r.explain(during, s.Name, r.runStep(during, s)) })
		}
		return all.Wait()
	})
}

func (r *run) runStep(ctx context.Context, s pipeline.Step) error {
	tools := r.client.Directory()
	for _, name := range s.AllScripts() {
		tools = tools.WithNewFile(name, r.plan.Scripts[name])
	}
	at := pipeline.Places{Tools: "/dsbuild", In: "/in", Out: "/out", Work: "/build", Cache: "/objects"}
	ctr := r.images[s.Image].WithMountedDirectory(at.Tools, tools).
		WithDirectory(at.Out, r.client.Directory()).WithDirectory(at.Work, r.client.Directory())
	for _, in := range s.Inputs {
		ctr = ctr.WithMountedDirectory(at.In+"/"+in, r.outputs[in])
	}
	for _, env := range []map[string]string{at.Env(s), s.Env} {
		for _, k := range slices.Sorted(maps.Keys(env)) {
			ctr = ctr.WithEnvVariable(k, env[k])
		}
	}
	if s.Network || s.Compile {
		ctr = ctr.WithMountedSecret(siteMount, r.siteSecret())
	}
	if s.Compile {
		ctr = ctr.WithMountedCache(at.Cache, r.client.CacheVolume("dsbuild-objects"))
		if r.Jobs > 0 {
			ctr = ctr.WithEnvVariable("MAX_JOBS", fmt.Sprint(r.Jobs))
		}
	}
	if r.nonce != "" && !s.Network {
		ctr = ctr.WithEnvVariable("DSBUILD_NONCE", r.nonce).WithEnvVariable("CCACHE_RECACHE", "1")
	}
	out, err := ctr.WithExec(s.Command(at.Tools)).Directory(at.Out).Sync(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outputs[s.Name] = out
	return err
}

// Export copies the output of a step to dir.
func (r *run) Export(ctx context.Context, step, dir string) error {
	if _, err := r.outputs[step].Export(ctx, dir); err != nil {
		return fmt.Errorf("export of step %s: %w", step, err)
	}
	return nil
}

// Import makes dir the output of a step.
func (r *run) Import(step, dir string) error {
	r.outputs[step] = r.client.Host().Directory(dir)
	return nil
}

// reportStep runs one step and reports it: it shows and logs the step's lines, takes its time,
// and marks a step that the engine had cached.
func (r *run) reportStep(ctx context.Context, name, title string, do func(context.Context) error) error {
	shown := r.Report.Step(name + ": " + title)
	fmt.Fprintf(r.Log, "== %s: %s\n", name, title)
	start := time.Now()
	r.steps.begin(shown, r.Log)
	err := do(ctx)
	// Wait until the engine's reports about a step that has just ended must have arrived. The
	// engine sends spans and lines in batches, some of them after the result.
	if rest := batchTime - time.Since(start); rest > 0 {
		time.Sleep(rest)
	}
	r.steps.mu.Lock()
	ran := r.steps.ran > 0
	r.steps.mu.Unlock()
	if ran {
		time.Sleep(batchTime)
	}
	cached := r.steps.end()
	switch {
	case ctx.Err() != nil: // the engine's error is only a consequence
		shown.End(ui.Failed, "interrupted")
		return context.Cause(ctx)
	case err != nil:
		shown.End(ui.Failed, "")
		var done explained
		if err = r.explain(ctx, name, err); errors.As(err, &done) {
			err = done.error
		}
		return err
	case cached && name != baseStep: // a base is looked at, not run
		shown.End(ui.Cached, "")
	default:
		shown.End(ui.Done, "")
	}
	return nil
}

// explained is an error of one of several steps that are reported as one.
type explained struct{ error }

func (e explained) Unwrap() error { return e.error }

// explain returns the error of a step for the user, and logs its output. It returns explained errors unchanged.
func (r *run) explain(ctx context.Context, name string, err error) error {
	var done explained
	if err == nil || ctx.Err() != nil || errors.As(err, &done) {
		return err
	}
	var exec *dagger.ExecError
	if errors.As(err, &exec) {
		r.steps.mu.Lock() // it logs lines of other steps
		fmt.Fprintf(r.Log, "%s\n%s\nexit code %d\n", exec.Stdout, exec.Stderr, exec.ExitCode)
		r.steps.mu.Unlock()
		return explained{pipeline.StepFailed(name, fmt.Errorf("exit code %d", exec.ExitCode), true,
			pipeline.FailureLines(exec.Stdout, exec.Stderr))}
	}
	r.steps.mu.Lock()
	fmt.Fprintln(r.Log, err)
	r.steps.mu.Unlock()
	// Only the errors of a lost engine are explained by its container: the engine reports the messages of registries
	// and files in the same form.
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	_, lost := r.client.Version(ctx)
	return explained{pipeline.StepFailed(name, r.engine.Explain(withoutQuery(err), lost == nil), false, "")}
}

// pingTimeout bounds the answer of a busy engine.
const pingTimeout = 30 * time.Second

// withoutQuery removes the query that the client puts before the error text.
func withoutQuery(err error) error {
	if _, what, found := strings.Cut(err.Error(), "\nerror: "); found {
		return errors.New(what)
	}
	return err
}
