package image

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/dsbuild/dsbuild/fleet/deploy/wheels"
	"github.com/dsbuild/dsbuild/internal/each"
	"github.com/dsbuild/dsbuild/internal/scratch"
)

// Result is an image that was made.
type Result struct {
	*Plan
	Image     string  `json:"image"` // NAME@DIGEST in a registry, else the path
	Digest    string  `json:"digest"`
	Layer     Layer   `json:"layer"`
	Unchanged bool    `json:"unchanged"` // the same image was there
	Seconds   float64 `json:"seconds"`
}

// Layer is the new layer in a report.
type Layer struct {
	Digest string `json:"digest"`
	Size   int64  `json:"size"` // compressed
	Files  int    `json:"files"`
}

// Build makes the image and writes it. A failure leaves the output as it was.
func (p *Plan) Build(ctx context.Context) (result *Result, err error) {
	begin := time.Now()
	dir, err := scratch.New("")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	media, err := p.base.image.MediaType()
	if err != nil {
		return nil, err
	}
	layerMedia := types.OCILayer
	if media == types.DockerManifestSchema2 {
		layerMedia = types.DockerLayer
	}
	l, err := writeLayer(ctx, p.content, p.Created, dir.Path, layerMedia)
	if err != nil {
		return nil, err
	}
	if p.base.plain { // readers of such a tar take all its layers for one kind
		l = plainLayer{l}
	}
	image, err := p.compose(l, media)
	if err != nil {
		return nil, err
	}
	digest, err := image.Digest()
	if err != nil {
		return nil, err
	}
	added, err := partial.Descriptor(l)
	if err != nil {
		return nil, err
	}
	result = &Result{Plan: p, Digest: digest.String(), Layer: Layer{added.Digest.String(), added.Size, len(p.content.files)}}
	write := p.push
	if p.output == nil {
		write = p.writeFile
	}
	if err := write(ctx, image, result); err != nil {
		return nil, err
	}
	result.Seconds = time.Since(begin).Seconds()
	return result, nil
}

// compose puts the layer on the base. media is the type of its manifest.
func (p *Plan) compose(l v1.Layer, media types.MediaType) (v1.Image, error) {
	names := each.Map(p.opt.Wheels, func(w wheels.Wheel) string { return w.Manifest.Name })
	image, err := mutate.Append(p.base.image, mutate.Addendum{
		Layer: l,
		History: v1.History{
			Created: v1.Time{Time: p.Created}, CreatedBy: "dsbuild image --wheel " + strings.Join(names, " --wheel "),
			Comment: "sha256 " + p.opt.Wheels[0].Manifest.SHA256,
		},
	})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.Created = v1.Time{Time: p.Created}
	if config.Config.Labels == nil {
		config.Config.Labels = map[string]string{}
	}
	// The labels of the new image.
	main := p.opt.Wheels[0].Manifest
	out := map[string]string{
		labelPrefix + "wheel":        main.Name,
		labelPrefix + "wheel.sha256": main.SHA256,
	}
	maps.Copy(out, p.baseLabels())
	for _, f := range p.Facts {
		out[labelPrefix+f.Name] = f.Value
	}
	out[labelPrefix+FactDeepSpeed] = p.opt.Wheels[0].Version
	maps.Copy(config.Config.Labels, out)
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return nil, err
	}
	if media == types.DockerManifestSchema2 { // it knows no annotations
		return image, nil
	}
	annotated, ok := mutate.Annotations(image, p.baseLabels()).(v1.Image)
	if !ok {
		return nil, fmt.Errorf("the manifest of %s takes no annotations", p.opt.Base)
	}
	return annotated, nil
}
