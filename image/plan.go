package image

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"deps.dev/util/pypi"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/deploy/wheels"
	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/node"
	"github.com/dsbuild/dsbuild/wheel"
)

// Options describe the image to make.
type Options struct {
	Base   string            // image reference, file of docker save, OCI layout as a tar or folder
	Wheels []wheels.Wheel    // DeepSpeed's first; then its companions
	Output string            // image reference, .tar, or .sqsh
	Name   string            // of the image within a tar; "" for none
	Given  map[string]string // facts that the user knows, by name
	Force  bool              // replace an output that is there
	Time   time.Time         // of all files; zero: the newest file of the wheels
	Tables *compat.Tables
	// Transport reaches registries; nil is http.DefaultTransport.
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

	opt     Options
	base    *base
	target  target
	known   *evidence
	files   listing // nil: not known
	traffic *traffic
}

// BaseImage is the base in a report.
type BaseImage struct {
	Name     string `json:"name"`
	Digest   string `json:"digest"`
	Platform string `json:"platform"`
	Layers   int    `json:"layers"`
	Size     int64  `json:"size"` // of the layers, as they are stored
	Read     string `json:"read"` // the part that was read: "configuration", "files"
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
	p.traffic = &traffic{next: next}
	platform, err := platformOf(opt.Wheels[0].Manifest)
	if err != nil {
		return nil, err
	}
	if p.base, err = openBase(ctx, opt.Base, platform, p.traffic); err != nil {
		return nil, err
	}
	if err := p.survey(ctx, platform); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Close releases the base.
func (p *Plan) Close() error { return p.base.close() }

// machines are the names that images have for the machines in tags of wheels.
var machines = map[string]string{"x86_64": "amd64", "aarch64": "arm64"}

// platformOf returns the platform of a wheel.
func platformOf(m wheel.Manifest) (v1.Platform, error) {
	for tag, architecture := range machines {
		if strings.HasSuffix(m.Name, "_"+tag+".whl") {
			return v1.Platform{OS: "linux", Architecture: architecture}, nil
		}
	}
	return v1.Platform{}, usagef("", "%s: its name has no platform for which there are images", m.Name)
}

// survey gathers the facts and decides.
func (p *Plan) survey(ctx context.Context, platform v1.Platform) error {
	config, err := p.readConfig(platform)
	if err != nil {
		return err
	}
	if err := p.gather(ctx, config); err != nil {
		return err
	}
	p.Facts = p.known.list()
	for _, w := range p.opt.Wheels {
		p.Wheels = append(p.Wheels, Wheel{w.Manifest.Name, w.Version, w.Manifest.SHA256})
	}
	if err := p.checkKnown(); err != nil {
		return err
	}
	if err := p.checkFit(); err != nil {
		return err
	}
	if p.target, err = newTarget(p.known.value(FactSitePackages), minor(p.known.value(FactPython))); err != nil {
		return err
	}
	if err := p.replaceOld(config); err != nil {
		return err
	}
	p.Created = p.opt.Time
	if p.Created.IsZero() {
		p.Created, err = newestFile(p.opt.Wheels)
	}
	p.Created = p.Created.UTC().Truncate(time.Second)
	return err
}

// readConfig reads manifest and configuration of the base and checks the platform.
func (p *Plan) readConfig(platform v1.Platform) (*v1.ConfigFile, error) {
	fail := func(err error) error {
		if p.base.ref != nil {
			err = registryError(err, p.base.ref.Context().RegistryStr())
		}
		return fmt.Errorf("base %s: %w", p.opt.Base, err)
	}
	config, err := p.base.image.ConfigFile()
	if err != nil {
		return nil, fail(err)
	}
	m, err := p.base.image.Manifest()
	if err != nil {
		return nil, fail(err)
	}
	if config.RootFS.Type != "layers" || len(config.RootFS.DiffIDs) != len(m.Layers) {
		return nil, fail(fmt.Errorf("its configuration is that of no container image: %d layers, the manifest has %d", len(config.RootFS.DiffIDs), len(m.Layers)))
	}
	p.Base = BaseImage{Name: p.opt.Base, Digest: p.base.digest.String(), Platform: config.OS + "/" + config.Architecture, Layers: len(m.Layers), Read: "configuration"}
	for _, l := range m.Layers {
		p.Base.Size += l.Size
	}
	if p.Base.Platform != platform.OS+"/"+platform.Architecture {
		want := platform.OS + "/" + platform.Architecture
		return nil, p.unfit("take a base for "+want, fmt.Sprintf("the wheel is for %s, the base for %s", want, p.Base.Platform))
	}
	return config, nil
}

// gather collects the facts: from the user, then from the files, then from the image's metadata.
func (p *Plan) gather(ctx context.Context, config *v1.ConfigFile) error {
	given := newEvidence()
	for _, name := range factNames() {
		value := p.opt.Given[name]
		if value != "" && !factForms[name].MatchString(value) {
			return usagef("", "--%s %q is not of the form of such a value", name, value)
		}
		if name == FactTorch {
			given.addTorch(value, "flag --"+name)
		} else {
			given.add(name, value, "flag --"+name)
		}
	}
	glibcOf := p.glibcOf
	known, err := p.addSBOM(ctx, factsOfLabels(config.Config.Labels))
	if err != nil {
		return err
	}
	known = known.over(factsOfConfig(config, glibcOf))
	if err := p.readFiles(ctx); err != nil {
		return err
	}
	if p.files != nil {
		if real, said := p.files.resolve(given.value(FactSitePackages)), given.value(FactSitePackages); real != said {
			return usagef("give --site-packages "+real, "site-packages %s is a link in the base, to %s", said, real)
		}
		seen, err := p.files.facts(given.value(FactSitePackages), glibcOf)
		if err != nil {
			return err
		}
		if wrong := seen.contradict(given); len(wrong) > 0 {
			return usagef("leave the flag out: dsbuild reads the files of this base", "%s", strings.Join(wrong, "; "))
		}
		if !p.files.hasPython() {
			return p.unfit("take a base with Python and torch", "the base has no Python")
		}
		known = seen.over(known)
	}
	p.known = given.over(known)
	return nil
}

// readFiles lists the files of a base on disk, or of one in a registry whose layers have tables
// of contents.
func (p *Plan) readFiles(ctx context.Context) (err error) {
	if p.base.ref == nil {
		if p.files, err = listLayers(ctx, p.base.image); err != nil {
			return fmt.Errorf("base %s: %w", p.opt.Base, err)
		}
	} else if p.files, err = listRemote(ctx, p.base, p.traffic); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		p.Remarks = append(p.Remarks, fmt.Sprintf("the files of the base are not known: %v", err))
	}
	if p.files != nil {
		p.Base.Read = "files"
	}
	return nil
}

// addSBOM adds what the SBOM of a base in a registry says, if something is missing.
func (p *Plan) addSBOM(ctx context.Context, known *evidence) (*evidence, error) {
	if p.base.ref == nil || known.value(FactPython) != "" && known.value(FactTorch) != "" && known.value(FactGlibc) != "" && known.value(FactDeepSpeed) != "" {
		return known, nil
	}
	text, err := readSBOM(p.base, registryOptions(ctx, p.traffic))
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		p.Remarks = append(p.Remarks, fmt.Sprintf("the SBOM of the base could not be read: %v", err))
		return known, nil
	}
	return known.over(factsOfSBOM(text)), nil
}

// glibcOf returns the glibc of an image of a distribution that the tables have.
func (p *Plan) glibcOf(image string) string {
	env, ok := p.opt.Tables.EnvironmentOfImage(image)
	if !ok {
		return ""
	}
	return env.Glibc
}

// showFacts prints, in a container of the base, the flags that dsbuild needs.
const showFacts = `python3 -c "import os,sys,sysconfig as s,torch as t;print('--python %d.%d --torch %s --cuda %s --glibc %s --site-packages %s'%(*sys.version_info[:2],t.__version__,t.version.cuda or 'none',os.confstr('CS_GNU_LIBC_VERSION').split()[1],s.get_path('purelib')))"`

// checkKnown refuses to guess.
func (p *Plan) checkKnown() error {
	var unknown []string
	for _, name := range []string{FactPython, FactTorch, FactCUDA, FactGlibc, FactSitePackages} {
		switch {
		case p.known.value(name) != "" || p.known.value(FactTorch) == None && name != FactTorch:
		case len(p.known.conflicts[name]) > 0:
			unknown = append(unknown, fmt.Sprintf("--%s (%s)", name, p.known.describeConflict(name)))
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

// checkFit compares the wheel with the base as it compares it with a node.
func (p *Plan) checkFit() error {
	main := p.opt.Wheels[0]
	if p.known.value(FactTorch) == None && main.Manifest.Torch != "" {
		return p.unfit("take a base with torch "+minor(main.Manifest.Torch), "the base has no torch")
	}
	verdict := p.opt.Tables.Fit(main.Manifest, p.nodeFacts(main.Manifest))
	for _, r := range verdict.Remarks {
		p.Remarks = append(p.Remarks, aboutBase(r))
	}
	if verdict.OK() {
		return nil
	}
	reasons := make([]string, len(verdict.Reasons))
	for i, r := range verdict.Reasons {
		reasons[i] = aboutBase(r)
	}
	return p.unfit(verdict.Hint(), reasons...)
}

// unfit returns the error of a wheel that does not fit the base.
func (p *Plan) unfit(advice string, reasons ...string) error {
	err := fmt.Errorf("%s does not fit %s: %s", p.opt.Wheels[0].Manifest.Name, p.opt.Base, strings.Join(reasons, "; "))
	return hint.Coded(hint.Add(err, advice), 4)
}

// aboutBase lets a sentence of compat.Fit speak of the base.
func aboutBase(reason string) string {
	return strings.ReplaceAll(reason, "this node", "the base")
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

// replaceOld plans what the layer hides: other versions of the wheels' distributions.
func (p *Plan) replaceOld(config *v1.ConfigFile) error {
	site := strings.TrimPrefix(p.target.site, "/")
	if p.files != nil {
		have := p.files.packages(site)
		for _, w := range p.opt.Wheels {
			name, _ := wheel.ParseFileName(filepath.Base(w.Path))
			for _, old := range have[pypi.CanonPackageName(name.Name)] {
				p.hideDistribution(site, old)
			}
		}
		return nil
	}
	switch old := p.known.value(FactDeepSpeed); {
	case old == None:
	case old != "":
		p.hideDistribution(site, distribution{"deepspeed", old})
	case mentionsDeepSpeed(config) != "":
		return usagef("name the version in the base: --deepspeed 0.17.0, or --deepspeed none", "base %s: its history speaks of DeepSpeed, but not of the version: %.120q", p.opt.Base, mentionsDeepSpeed(config))
	default:
		p.Remarks = append(p.Remarks, "it is not known whether the base has a DeepSpeed: the layer hides the folder deepspeed of the base, but not the metadata of another version (--deepspeed VERSION does)")
	}
	return nil
}

// hideDistribution hides the metadata of a distribution, and its commands if RECORD is known.
func (p *Plan) hideDistribution(site string, old distribution) {
	p.Remarks = append(p.Remarks, fmt.Sprintf("the layer replaces %s %s of the base", old.name, old.version))
	info := path.Join(site, old.name+"-"+old.version+".dist-info")
	p.Hidden = append(p.Hidden, info)
	e, ok := p.files[info+"/RECORD"]
	if !ok || e.read == nil {
		return
	}
	text, err := e.read()
	if err != nil {
		return
	}
	p.Hidden = append(p.Hidden, outsideFiles(text, site)...)
	slices.Sort(p.Hidden)
	p.Hidden = slices.Compact(p.Hidden)
}

// newestFile returns the time of the newest file in the wheels.
func newestFile(all []wheels.Wheel) (newest time.Time, err error) {
	for _, w := range all {
		t, err := zipTime(w.Path)
		if err != nil {
			return newest, err
		}
		if t.After(newest) {
			newest = t
		}
	}
	return newest, nil
}

// labels are those of the new image.
func (p *Plan) labels() map[string]string {
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
	return out
}

// baseLabels name the base, as the OCI image specification has it.
func (p *Plan) baseLabels() map[string]string {
	out := map[string]string{"org.opencontainers.image.base.digest": p.Base.Digest}
	if p.base.ref != nil {
		out["org.opencontainers.image.base.name"] = p.base.ref.Name()
	}
	return out
}
