package image

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/dsbuild/dsbuild/internal/scratch"
	"github.com/dsbuild/dsbuild/wheel"
)

// Result is an image that was made.
type Result struct {
	*Plan
	Image     string  `json:"image"` // NAME@DIGEST in a registry, else the path
	Digest    string  `json:"digest"`
	Layer     Layer   `json:"layer"`
	Unchanged bool    `json:"unchanged"`      // the same image was there
	Received  int64   `json:"received_bytes"` // from registries
	Sent      int64   `json:"sent_bytes"`     // to registries
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
	c, done, err := p.content()
	defer func() { err = errors.Join(err, done()) }()
	if err != nil {
		return nil, err
	}
	l, err := writeLayer(ctx, c, p.Created, dir.Path)
	if err != nil {
		return nil, err
	}
	image, err := p.compose(l)
	if err != nil {
		return nil, err
	}
	digest, err := image.Digest()
	if err != nil {
		return nil, err
	}
	result = &Result{Plan: p, Digest: digest.String(), Layer: Layer{l.digest.String(), l.size, len(c.files)}}
	if err := p.write(ctx, image, result); err != nil {
		return nil, err
	}
	result.Received, result.Sent = p.traffic.received.Load(), p.traffic.sent.Load()
	result.Seconds = time.Since(begin).Seconds()
	return result, nil
}

// content installs the wheels. done closes them, after the layer is written.
func (p *Plan) content() (c content, done func() error, err error) {
	var paths []string
	for _, w := range p.opt.Wheels {
		paths = append(paths, w.Path)
	}
	archives, err := openWheels(paths)
	done = func() error {
		var err error
		for _, a := range archives {
			err = errors.Join(err, a.Close())
		}
		return err
	}
	if err != nil {
		return c, done, err
	}
	var all []*installation
	for _, a := range archives {
		i, err := installWheel(a, p.target)
		if err != nil {
			return c, done, err
		}
		all = append(all, i)
	}
	if c, err = combine(all); err != nil {
		return c, done, err
	}
	p.hide(&c, archives)
	return c, done, nil
}

// hide adds the removals of the plan to a layer, except for files that it writes itself. What is
// left of an older installation in the wheels' own folders is hidden, too: files are known only
// of a base on disk.
func (p *Plan) hide(c *content, archives []*wheel.Archive) {
	site := strings.TrimPrefix(p.target.site, "/")
	written := map[string]bool{}
	for _, f := range c.files {
		written[f.path] = true
	}
	for _, h := range p.Hidden {
		if !written[h] && !c.folders[h] {
			c.hidden = append(c.hidden, h)
		}
	}
	nothingOld := p.known.value(FactDeepSpeed) == None
	if p.files != nil {
		nothingOld = len(p.Hidden) == 0
	}
	if nothingOld {
		return
	}
	for _, a := range archives {
		c.opaque = append(c.opaque, path.Join(site, a.DistInfo()))
		for _, m := range a.Members() {
			scheme, below := wheel.Place(m.Name)
			if top, file := path.Split(below); scheme == "" && file == "__init__.py" && strings.Count(top, "/") == 1 {
				c.opaque = append(c.opaque, path.Join(site, top))
			}
		}
	}
	slices.Sort(c.opaque)
	c.opaque = slices.Compact(c.opaque)
}

// compose puts the layer on the base.
func (p *Plan) compose(l *layer) (v1.Image, error) {
	media, err := p.base.image.MediaType()
	if err != nil {
		return nil, err
	}
	if media == types.DockerManifestSchema2 {
		l.media = types.DockerLayer
	}
	added, err := l.asLayer()
	if err != nil {
		return nil, err
	}
	names := make([]string, len(p.opt.Wheels))
	for i, w := range p.opt.Wheels {
		names[i] = w.Manifest.Name
	}
	image, err := mutate.Append(p.base.image, mutate.Addendum{
		Layer: added, MediaType: l.media,
		History: v1.History{Created: v1.Time{Time: p.Created}, CreatedBy: "dsbuild image --wheel " + strings.Join(names, " --wheel "), Comment: "sha256 " + p.opt.Wheels[0].Manifest.SHA256},
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
	for name, value := range p.labels() {
		config.Config.Labels[name] = value
	}
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
