// Package image puts installed wheels as one layer on a container image.
//
// Survey reads the base and returns a Plan: the facts about the base, each with its source, and
// where the wheels' files go. Plan.Build writes the layer and the image. go-containerregistry
// reads and writes images, in registries and on disk. The layers of a base in a registry are read
// only if its labels do not tell enough.
package image

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"deps.dev/util/pypi"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet/deploy/wheels"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/each"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/httpclient"
	"github.com/dsbuild/dsbuild/wheel"
)

// Options describe the image to make.
type Options struct {
	Base   string            // image reference, file of docker save, or folder of an OCI layout
	Wheels []wheels.Wheel    // DeepSpeed's first; then its companions
	Output string            // HOST/NAME:TAG or NAME.tar; "" if only the plan is wanted
	Name   string            // of the image within a tar; "" for none
	Given  map[string]string // facts that the user knows, by name
	Force  bool              // replace an output that is there
	Time   time.Time         // of all files; zero: the newest file of the wheels
	Tables *compat.Tables
	Note   func(text string) // says what takes long; may be nil
	// Transport reaches registries, with the policy of package httpclient; nil is http.DefaultTransport.
	Transport http.RoundTripper
}

// Plan is an image that can be made.
type Plan struct {
	Base    BaseImage `json:"base"`
	Facts   []Fact    `json:"facts"`
	Wheels  []Wheel   `json:"wheels"`
	Hidden  []string  `json:"hidden"` // files and folders of the base that the layer hides
	Remarks []string  `json:"remarks"`
	Output  string    `json:"output"`
	Created time.Time `json:"created"`

	opt      Options
	base     base
	output   name.Reference // nil: a file
	archives []*wheel.Archive
	target   target
	known    evidence
	files    *tree // nil: not read
	content  content
	http     *httpclient.Transport
}

// BaseImage is the base in a report.
type BaseImage struct {
	Name     string `json:"name"`
	Digest   string `json:"digest"`
	Platform string `json:"platform"`
	Layers   int    `json:"layers"`
	Size     int64  `json:"size"` // of the layers, as they are stored
	Read     string `json:"read"` // the part that was read: "labels", "files"
}

// Wheel is one wheel in a report.
type Wheel struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	SHA256  string `json:"sha256"`
}

// Survey reads the base and plans the image. It writes nothing. The caller closes the plan.
func Survey(ctx context.Context, opt Options) (*Plan, error) {
	if len(opt.Wheels) == 0 {
		return nil, errors.New("no wheel")
	}
	p := &Plan{opt: opt, Output: opt.Output, Hidden: []string{}, Remarks: []string{}}
	next := opt.Transport
	if next == nil {
		next = http.DefaultTransport
	}
	p.http = httpclient.New(next)
	if err := p.survey(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Close closes the wheels.
func (p *Plan) Close() error {
	var err error
	for _, a := range p.archives {
		err = errors.Join(err, a.Close())
	}
	return err
}

// machines are the names that images have for the machines in tags of wheels.
var machines = map[string]string{"x86_64": "amd64", "aarch64": "arm64"}

// survey gathers the facts and decides.
func (p *Plan) survey(ctx context.Context) (err error) {
	if p.opt.Output != "" {
		if p.output, err = parseOutput(p.opt.Output); err != nil {
			return err
		}
	}
	// Open the verified wheels. None may have a file of something else.
	for _, w := range p.opt.Wheels {
		p.Wheels = append(p.Wheels, Wheel{w.Manifest.Name, w.Version, w.Manifest.SHA256})
		a, err := wheel.Open(w.Path)
		if err != nil {
			return err
		}
		p.archives = append(p.archives, a)
		if err := wheels.CheckOwnFiles(a); err != nil {
			return usagef("leave the wheel out", "%w", err)
		}
	}

	if err := p.openBase(ctx); err != nil {
		return err
	}
	if err := p.gather(ctx); err != nil {
		return err
	}
	p.Facts = p.known.list()
	if err := p.checkKnown(); err != nil {
		return err
	}
	if err := p.checkFit(); err != nil {
		return err
	}
	if p.target, err = newTarget(p.known.value(FactSitePackages), minor(p.known.value(FactPython))); err != nil {
		return err
	}
	if err := p.layOut(); err != nil {
		return err
	}
	p.Created = p.opt.Time
	if p.Created.IsZero() {
		p.Created, err = newestFile(p.opt.Wheels)
	}
	p.Created = p.Created.UTC().Truncate(time.Second)
	return err
}

// openBase opens the base, whose platform must be the wheel's.
func (p *Plan) openBase(ctx context.Context) error {
	platform, file := v1.Platform{OS: "linux"}, p.opt.Wheels[0].Manifest.Name
	for tag, architecture := range machines {
		if strings.HasSuffix(file, "_"+tag+".whl") {
			platform.Architecture = architecture
		}
	}
	if platform.Architecture == "" {
		return usagef("", "%s: its name has no platform for which there are images", file)
	}
	var err error
	if p.base, err = openBase(ctx, p.opt.Base, platform, p.output == nil, p.http); err != nil {
		return fmt.Errorf("base %s: %w", p.opt.Base, err)
	}
	config, err := p.base.image.ConfigFile()
	if err != nil {
		return err
	}
	p.Base = BaseImage{Name: p.opt.Base, Platform: config.OS + "/" + config.Architecture, Layers: len(config.RootFS.DiffIDs), Read: "labels"}
	if want := platform.OS + "/" + platform.Architecture; p.Base.Platform != want {
		return p.unfit("take a base for "+want+", or a wheel for "+p.Base.Platform, fmt.Sprintf("the wheel is for %s, the base for %s", want, p.Base.Platform))
	}
	digest, err := p.base.image.Digest()
	if err != nil {
		return err
	}
	p.Base.Digest = digest.String()
	m, err := p.base.image.Manifest()
	if err != nil {
		return err
	}
	for _, l := range m.Layers {
		p.Base.Size += l.Size
	}
	return nil
}

// gather collects the facts: from the user, then from the files, then from dsbuild's own labels, which an
// earlier run or the Dockerfile of the base has set.
func (p *Plan) gather(ctx context.Context) error {
	config, err := p.base.image.ConfigFile()
	if err != nil {
		return err
	}
	given, labels := evidence{}, evidence{}
	for _, name := range factNames() {
		value := p.opt.Given[name]
		if value != "" && !factForms[name].MatchString(value) {
			return usagef("", "--%s %q is not of the form of such a value", name, value)
		}
		given.add(name, value, "flag --"+name)
		label := labelPrefix + name
		labels.add(name, config.Config.Labels[label], "label "+label)
	}
	p.known = given.over(labels)
	if p.base.ref != nil && !p.needsFiles() {
		return nil
	}
	if err := p.readFiles(ctx); err != nil {
		return err
	}
	site := relative(given.value(FactSitePackages))
	if real := path.Dir(p.files.real(path.Join(site, "x"))); site != "" && real != site {
		return usagef("give --site-packages /"+real, "site-packages /%s is a link in the base, to /%s", site, real)
	}
	seen, hasPython := p.files.facts(given.value(FactSitePackages))
	var wrong []string
	for _, f := range seen.list() {
		if said := given.value(f.Name); said != "" && !agree(f.Name, f.Value, said) {
			wrong = append(wrong, fmt.Sprintf("--%s %s, but %s says %s", f.Name, said, f.Source, f.Value))
		}
	}
	if len(wrong) > 0 {
		return usagef("leave the flag out: dsbuild reads the files of this base", "%s", strings.Join(wrong, "; "))
	}
	if !hasPython {
		return p.unfit("take a base with Python and torch", "the base has no Python")
	}
	p.known = given.over(seen.over(labels))
	return nil
}

// needsFiles reports whether the layers of a base in a registry must be read: if a fact is missing,
// or if a wheel has files whose places something else in the base may have. DeepSpeed's own folder
// and commands are its own in every base.
func (p *Plan) needsFiles() bool {
	for _, name := range append(requiredFacts(), FactDeepSpeed) {
		if p.known.value(name) == "" {
			return true
		}
	}
	for _, m := range p.archives[0].Members() {
		scheme, below := wheel.Place(m.Name)
		top, _, _ := strings.Cut(below, "/")
		own := scheme == "" && (top == "deepspeed" || top == p.archives[0].DistInfo()) ||
			scheme == "scripts" && isCommandOfDeepSpeed(below)
		if !own {
			return true
		}
	}
	return len(p.archives) > 1
}

// readFiles reads the layers of the base.
func (p *Plan) readFiles(ctx context.Context) (err error) {
	if p.base.ref != nil && p.opt.Note != nil {
		p.opt.Note(fmt.Sprintf("reading the layers of %s (%d MB): labels or flags for all facts would save that", p.opt.Base, p.Base.Size>>20))
	}
	names := make([]string, len(p.opt.Wheels))
	for i, w := range p.opt.Wheels {
		file, _ := wheel.ParseFileName(filepath.Base(w.Path))
		names[i] = pypi.CanonPackageName(file.Name)
	}
	p.Base.Read = "files"
	p.files, err = readTree(ctx, p.base.image, names)
	switch {
	case err == nil:
		return nil
	case p.base.ref == nil && ctx.Err() == nil:
		return usagef("", "base %s: %w", p.opt.Base, err)
	}
	return fmt.Errorf("base %s: %w", p.opt.Base, registryError(err, p.base.ref))
}

// showFacts prints, in a container of the base, the flags that dsbuild needs.
const showFacts = `python3 -c "import os,sys,sysconfig as s,torch as t;print('--python %d.%d --torch %s --cuda %s --glibc %s --site-packages %s'%(*sys.version_info[:2],t.__version__,t.version.cuda or 'none',os.confstr('CS_GNU_LIBC_VERSION').split()[1],s.get_path('purelib')))"`

// requiredFacts are those without which no wheel can be placed.
func requiredFacts() []string {
	return []string{FactPython, FactTorch, FactCUDA, FactGlibc, FactSitePackages}
}

// checkKnown refuses to guess.
func (p *Plan) checkKnown() error {
	var unknown []string
	for _, name := range requiredFacts() {
		switch {
		case p.known.value(name) != "" || p.known.value(FactTorch) == None && name != FactTorch:
		case len(p.known[name]) > 1:
			said := each.Map(p.known[name], func(f Fact) string { return f.Value + " by " + f.Source })
			unknown = append(unknown, fmt.Sprintf("--%s (%s)", name, strings.Join(said, ", ")))
		default:
			unknown = append(unknown, "--"+name)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	try := "these flags say it"
	if p.base.ref != nil {
		try = "this prints the flags: docker run --rm --entrypoint= " + p.opt.Base + " " + showFacts
	}
	return usagef(try, "base %s: what dsbuild read of it (%s) does not tell everything; missing: %s", p.opt.Base, p.Base.Read, strings.Join(unknown, ", "))
}

// checkFit compares the wheel with the base as it compares it with a node, and refuses a companion that pip would not
// install there.
func (p *Plan) checkFit() error {
	main := p.opt.Wheels[0]
	if p.known.value(FactTorch) == None && main.Manifest.Torch != "" {
		return p.unfit("take a base with torch "+minor(main.Manifest.Torch), "the base has no torch")
	}
	f := p.nodeFacts(main.Manifest)
	verdict := p.opt.Tables.Fit(main.Manifest, f)
	aboutBase := strings.NewReplacer("this node", "the base") // in the sentences of compat.Fit
	for _, r := range verdict.Remarks {
		p.Remarks = append(p.Remarks, aboutBase.Replace(r))
	}
	if !verdict.OK() {
		return p.unfit(verdict.Hint(), aboutBase.Replace(strings.Join(verdict.Reasons, "; ")))
	}
	f.Tag = "cp" + strings.ReplaceAll(minor(f.Python), ".", "")
	for _, w := range p.opt.Wheels[1:] {
		name, err := wheel.ParseFileName(w.Manifest.Name)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(name.Tags, func(tag string) bool { return compat.Installs(tag, f) }) {
			return fault.New(fault.Wheel, "take a wheel of "+name.Name+" for it, or leave it out",
				"%s does not fit %s: the base is %s with Python %s and glibc %s",
				w.Manifest.Name, p.opt.Base, p.Base.Platform, f.Python, f.Glibc)
		}
	}
	return nil
}

// unfit returns the error of a wheel that does not fit the base.
func (p *Plan) unfit(advice, reason string) error {
	return fault.New(fault.Wheel, advice, "%s does not fit %s: %s", p.opt.Wheels[0].Manifest.Name, p.opt.Base, reason)
}

// nodeFacts are the facts of a node that runs the base. It has the GPUs of the wheel: an image
// says nothing about GPUs, and on a node with a GPU DeepSpeed refuses another CUDA.
func (p *Plan) nodeFacts(m wheel.Manifest) node.Facts {
	value := func(name string) string {
		if v := p.known.value(name); v != None {
			return v
		}
		return ""
	}
	f := node.Facts{Python: value(FactPython), Torch: value(FactTorch), TorchCUDA: value(FactCUDA), Glibc: value(FactGlibc), Libstdcxx: value(FactLibstdcxx)}
	_, architecture, _ := strings.Cut(p.Base.Platform, "/")
	for tag, name := range machines {
		if name == architecture {
			f.Platform = "linux_" + tag
		}
	}
	for _, arch := range slices.Concat(m.Archs, m.PTX)[:min(1, len(m.Archs)+len(m.PTX))] {
		f.GPUs = []node.GPU{{Name: "GPU", Arch: strings.TrimRight(arch, "af")}}
	}
	return f
}

// newestFile returns the time of the newest file in the wheels.
func newestFile(all []wheels.Wheel) (newest time.Time, err error) {
	for _, w := range all {
		z, err := zip.OpenReader(w.Path)
		if err != nil {
			return newest, err
		}
		for _, f := range z.File {
			if f.Modified.After(newest) {
				newest = f.Modified
			}
		}
		if err := z.Close(); err != nil {
			return newest, err
		}
	}
	return newest, nil
}

// baseLabels name the base, as the OCI image specification has it.
func (p *Plan) baseLabels() map[string]string {
	out := map[string]string{"org.opencontainers.image.base.digest": p.Base.Digest}
	if p.base.ref != nil {
		out["org.opencontainers.image.base.name"] = p.base.ref.Name()
	}
	return out
}
