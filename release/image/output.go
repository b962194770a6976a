package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/dsbuild/dsbuild/internal/atomicfile"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/httpclient"
	"github.com/dsbuild/dsbuild/wheel"
)

// registryScheme begins a reference that names no registry: docker://train:1 is on Docker Hub.
const registryScheme = "docker://"

const (
	outputHint   = "an output is a file NAME.tar, or HOST/NAME:TAG in a registry (docker.io/NAME:TAG for Docker Hub)"
	squashfsHint = "push HOST/NAME:TAG and run: enroot import -o NAME.sqsh docker://HOST#NAME:TAG; " +
		"for Apptainer write NAME.tar and run: apptainer build NAME.sif docker-archive:NAME.tar"
	forceHint = "choose another name, or add --force to replace it"
)

// parseOutput returns the image in a registry that an output names, nil for a file. A name is that of
// a registry only if it says so: a wrong name of a file would send the image to Docker Hub.
func parseOutput(output string) (name.Reference, error) {
	reference, explicit := strings.CutPrefix(output, registryScheme)
	host, _, isPath := strings.Cut(reference, "/")
	switch {
	case strings.HasSuffix(output, ".sqsh"), strings.HasSuffix(output, ".squashfs"), strings.HasSuffix(output, ".sif"):
		return nil, usagef(squashfsHint, "output %s: dsbuild writes no squashfs", output)
	case strings.HasSuffix(output, ".tar"):
		return nil, nil
	case strings.HasPrefix(output, "/"), strings.HasPrefix(output, "."):
		return nil, usagef(outputHint, "output %s: a file that dsbuild writes ends with .tar", output)
	case !explicit && !(isPath && (strings.ContainsAny(host, ".:") || host == "localhost")):
		return nil, usagef(outputHint, "output %s: it names neither a file that dsbuild writes nor a registry", output)
	}
	ref, err := name.ParseReference(reference)
	if err != nil {
		return nil, usagef(outputHint, "output %s: %w", output, err)
	}
	return ref, nil
}

// push sends the image to a registry: the new layer, the configuration, and last the manifest.
// Layers of the base that the registry has are mounted there.
func (p *Plan) push(ctx context.Context, image v1.Image, result *Result) error {
	there, err := remote.Head(p.output, registryOptions(ctx, p.http)...)
	var answer *transport.Error
	switch {
	case err == nil && there.Digest.String() == result.Digest:
		result.Unchanged = true
	case err == nil && !p.opt.Force:
		return usagef(forceHint, "%s is there already, with the digest %s", p.opt.Output, there.Digest)
	case err != nil && !(errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound):
		return registryError(fmt.Errorf("%s: %w", p.opt.Output, err), p.output)
	}
	result.Image = p.output.Context().Name() + "@" + result.Digest
	if result.Unchanged {
		return nil
	}
	err = p.http.Try(ctx, func(ctx context.Context, _ int) error {
		err := remote.Write(p.output, image, registryOptions(ctx, p.http)...)
		if errors.As(err, &answer) {
			return httpclient.WithStatus(err, answer.StatusCode)
		}
		return err
	})
	if err != nil {
		return registryError(fmt.Errorf("%s: %w", p.opt.Output, err), p.output)
	}
	return nil
}

// writeFile writes the tar that docker load reads.
func (p *Plan) writeFile(ctx context.Context, image v1.Image, result *Result) error {
	result.Image = p.opt.Output
	var ref name.Reference
	ref, err := name.NewDigest("image@" + result.Digest) // leaves the image in the tar without a name
	if p.opt.Name != "" {
		ref, err = name.NewTag(p.opt.Name)
	}
	if err != nil {
		return usagef("", "--name: %w", err)
	}
	if same, err := p.fileIsThere(image, ref); err != nil || same {
		result.Unchanged = same
		return err
	}
	r, w := io.Pipe()
	defer r.Close()
	go func() { w.CloseWithError(tarball.Write(ref, image, w)) }()
	return atomicfile.Write(p.opt.Output, wheel.NewContextReader(ctx, r), 0o644)
}

// fileIsThere reports whether the output is this very image. Another file is not replaced.
func (p *Plan) fileIsThere(image v1.Image, ref name.Reference) (same bool, err error) {
	if _, err = os.Lstat(p.opt.Output); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	want, err := image.ConfigName()
	if err != nil {
		return false, err
	}
	var tag *name.Tag
	if t, ok := ref.(name.Tag); ok {
		tag = &t
	}
	if there, err := tarball.ImageFromPath(p.opt.Output, tag); err == nil {
		if have, err := there.ConfigName(); err == nil && have == want {
			return true, nil
		}
	}
	if !p.opt.Force {
		return false, usagef(forceHint, "%s is there already", p.opt.Output)
	}
	return false, nil
}

// usagef returns the error of a choice that only the user can make; advice may be "".
func usagef(advice, format string, args ...any) error {
	return fault.New(fault.Usage, advice, format, args...)
}

// registryError adds a hint to the error of a registry.
func registryError(err error, ref name.Reference) error {
	var answer *transport.Error
	if !errors.As(err, &answer) || ref == nil {
		return err
	}
	registry := ref.Context().RegistryStr()
	switch answer.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return fault.WithHint(err, "log in first: docker login %s (or podman login); dsbuild uses the same file of credentials", registry)
	case http.StatusTooManyRequests:
		return fault.WithHint(err, "%s limits requests: log in for a higher limit, or try again later", registry)
	case http.StatusNotFound:
		return fault.WithHint(err, "%s has no such image, or does not show it to this user", registry)
	}
	return err
}
