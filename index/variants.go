package index

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"html/template"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/wheel"
)

// VariantIndex is an index of variants (PEP 825 and 850, drafts): its wheels have one version, and
// an installer that knows variants chooses among them by the machine's GPU, driver and CPU.
type VariantIndex struct {
	Name     string    `json:"name"` // of its folder: torch2.15-cu132-variants
	URL      string    `json:"url"`  // for --index-url, if it is known
	Variants []Variant `json:"variants"`
}

// Variant is a wheel of such an index.
type Variant struct {
	Name   string `json:"name"`  // of the file
	Label  string `json:"label"` // "": the plain wheel, for installers that know no variants
	From   string `json:"from"`  // the wheel that it was made of
	SHA256 string `json:"sha256"`

	version    string
	python     string
	properties properties
	source     Wheel
	tc         Toolchain
	path       string
	metadata   []byte
	size       int64
}

// Version returns the version that all variants of a release share.
func (v Variant) Version() string { return v.version }

// properties are the needs of a variant: a machine must have one of the values of each feature,
// by namespace and feature.
type properties map[string]map[string][]string

// The namespaces and features of the providers that tell an installer about the machine.
const (
	nvidia      = "nvidia"
	x86         = "x86_64"
	smArch      = "sm_arch"
	driverFloor = "cuda_version_lower_bound"
	cpuLevel    = "level"
)

// variantSchema is the version of the format. Versions 0.x are drafts.
const variantSchema = "https://variants-schema.wheelnext.dev/peps/850/v0.2.0.json"

// plainLevel is the highest CPU level of a plain wheel: an installer that knows no variants gives
// it to every machine.
const plainLevel = wheel.CPUv2

// variantsSuffix ends the names of the folders.
const variantsSuffix = "-variants"

// variants lists the variants of the releases among the wheels, by the name of their index.
// Builds of commits have no variants.
func variants(all []Toolchain) (map[string][]Variant, error) {
	found := map[string][]Variant{}
	for _, tc := range all {
		if tc.Dev {
			continue
		}
		parts := strings.SplitN(tc.Name, "-", 3)
		folder := parts[0] + "-" + parts[1] + variantsSuffix
		for _, w := range tc.Wheels {
			list, err := variantsOf(w, tc, parts[0]+"."+parts[1])
			if err != nil {
				return nil, err
			}
			found[folder] = append(found[folder], list...)
		}
	}
	for _, list := range found {
		if err := checkVariants(list); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// variantsOf returns the variants that are made of a wheel: one for its SASS and one for its PTX,
// because these need different drivers, or one for the CPU, and the plain wheel.
func variantsOf(w Wheel, tc Toolchain, local string) ([]Variant, error) {
	cpu := map[string][]string{}
	level := wheel.CPULevel(tc.CPU).Short()
	if tc.CPU != "" {
		cpu[cpuLevel] = []string{level}
	}
	base := Variant{From: w.Name, version: w.public() + "+" + local, python: w.tags(), source: w, tc: tc}
	add := func(list []Variant, label string, gpu map[string][]string) []Variant {
		v := base
		v.Label, v.properties = label+"."+level, properties{x86: cpu}
		if gpu != nil {
			v.properties[nvidia] = gpu
		}
		return append(list, v)
	}
	var list []Variant
	toolkit := wheel.Minor(cmp.Or(w.toolkit, tc.CUDA))
	if err := refuseSuffixes(w, slices.Concat(tc.Archs, tc.PTX)); err != nil {
		return nil, err
	}
	if len(tc.Archs) > 0 {
		// Any driver of the major runs SASS. An installer compares drivers before GPUs: with the
		// toolkit's version too, SASS comes before PTX where both run.
		major, _, _ := strings.Cut(tc.CUDA, ".")
		drivers := slices.Compact([]string{major + ".0", toolkit})
		list = add(list, labelOf("sm", tc.Archs), map[string][]string{smArch: realValues(tc.Archs), driverFloor: drivers})
	}
	if values := virtualValues(tc.PTX); len(values) > 0 {
		list = add(list, labelOf("ptx", tc.PTX), map[string][]string{smArch: values, driverFloor: {toolkit}})
	}
	if len(list) > 0 {
		return list, nil
	}
	list = add(list, "cpu", nil)
	if tc.CPU == "" || plainLevel.Includes(wheel.CPULevel(tc.CPU)) {
		list = append(list, base)
	}
	return list, nil
}

// refuseSuffixes refuses code for one GPU only (9.0a), for which variants have no value.
func refuseSuffixes(w Wheel, archs []string) error {
	for _, arch := range archs {
		if strings.Trim(arch, "0123456789.") != "" {
			return &ConflictError{fmt.Sprintf("%s: variants cannot say that its code for %s runs on no other GPU", w.Name, arch), "leave the wheel out, or build for " + strings.TrimRight(arch, "af")}
		}
	}
	return nil
}

// labelOf returns the part of a label for compute capabilities: "sm80.sm86".
func labelOf(prefix string, archs []string) string {
	parts := make([]string, 0, len(archs))
	for _, arch := range archs {
		parts = append(parts, prefix+strings.ReplaceAll(arch, ".", ""))
	}
	return strings.Join(parts, ".")
}

// realValues returns the values for SASS. The provider itself adds older minors of a GPU's major.
func realValues(archs []string) []string {
	values := make([]string, 0, len(archs))
	for _, arch := range archs {
		values = append(values, strings.ReplaceAll(arch, ".", "")+"_real")
	}
	return values
}

// newestMajor is the newest GPU architecture for which PTX is offered.
const newestMajor = 15

// virtualValues returns the values for PTX, which runs on every newer GPU. A GPU has just one such
// value, that of its major (90_virtual), so PTX for another minor is offered to newer majors only.
func virtualValues(archs []string) []string {
	var values []string
	for i := range newestMajor + 1 {
		runs := slices.ContainsFunc(archs, func(arch string) bool {
			major, minor, _ := strings.Cut(arch, ".")
			n, err := strconv.Atoi(major)
			return err == nil && (n < i || n == i && minor == "0")
		})
		if runs {
			values = append(values, fmt.Sprintf("%d0_virtual", i))
		}
	}
	return values
}

// checkVariants refuses wheels among which an installer would choose otherwise than dsbuild: it
// compares the GPU's architecture first and then the CPU, where dsbuild prefers the higher CPU level
// of two wheels whose code runs on the GPU as it is.
func checkVariants(list []Variant) error {
	for i, a := range list {
		for _, b := range list[:i] {
			if a.version != b.version || a.python != b.python {
				continue
			}
			if a.Label == b.Label {
				return &ConflictError{fmt.Sprintf("%s and %s are for the same machines", b.From, a.From), "leave one of them out"}
			}
			for _, pair := range [][2]Variant{{a, b}, {b, a}} {
				if err := pair[0].comparePriority(pair[1], list); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// comparePriority refuses v if an installer prefers it to other on a GPU, although other uses more
// of the CPU and no third variant has both.
func (v Variant) comparePriority(other Variant, list []Variant) error {
	value := v.nearer(other)
	if value == "" || other.tc.CPU <= v.tc.CPU {
		return nil
	}
	both := func(c Variant) bool {
		return c.version == v.version && c.python == v.python && c.tc.CPU >= other.tc.CPU && slices.Contains(c.properties[nvidia][smArch], value)
	}
	if slices.ContainsFunc(list, both) {
		return nil
	}
	return &ConflictError{
		fmt.Sprintf("%s is for a nearer GPU and %s for a better CPU: an installer of variants would choose the first, dsbuild the second", v.From, other.From),
		"build both for the same CPU levels, or leave one of them out",
	}
}

// nearer returns the newer architecture for which an installer prefers v on a GPU that runs the
// SASS of both; "" if there is none.
func (v Variant) nearer(other Variant) string {
	theirs := other.properties[nvidia][smArch]
	for _, a := range v.properties[nvidia][smArch] {
		x, isSASS := strings.CutSuffix(a, "_real")
		for _, b := range theirs {
			y, _ := strings.CutSuffix(b, "_real")
			if isSASS && b != y && x[:len(x)-1] == y[:len(y)-1] && x > y && !slices.Contains(theirs, a) {
				return a
			}
		}
	}
	return ""
}

// writeVariants makes the variants in a temporary folder, and lists the files of their indexes.
func writeVariants(ctx context.Context, opt Options, all []Toolchain, tmp string) ([]VariantIndex, []file, error) {
	found, err := variants(all)
	if err != nil {
		return nil, nil, err
	}
	indexes := []VariantIndex{}
	var files []file
	for _, folder := range slices.Sorted(maps.Keys(found)) {
		x := VariantIndex{Name: folder, Variants: found[folder]}
		if opt.URL != "" {
			x.URL = strings.TrimRight(opt.URL, "/") + "/" + folder + "/"
		}
		for i := range x.Variants {
			v := &x.Variants[i]
			if err := v.make(ctx, filepath.Join(tmp, folder)); err != nil {
				return nil, nil, err
			}
			at := path.Join(folder, project, v.Name)
			files = append(files, file{path: at, from: v.path}, file{path: at + MetadataSuffix, text: v.metadata})
		}
		pages, err := x.pages()
		if err != nil {
			return nil, nil, err
		}
		files = append(files, pages...)
		indexes = append(indexes, x)
	}
	return indexes, files, nil
}

// make writes the wheel of a variant.
func (v *Variant) make(ctx context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	description, err := document(describeVariants([]Variant{*v}))
	if err != nil {
		return err
	}
	v.path, v.metadata, err = wheel.WriteVariant(ctx, v.source.file, dir, wheel.Variant{Version: v.version, Label: v.Label, JSON: description})
	if err != nil {
		return err
	}
	v.Name = filepath.Base(v.path)
	v.SHA256, v.size, err = wheel.HashFile(v.path)
	return err
}

// variantDocument is variant.json, and the document of all variants of a version.
type variantDocument struct {
	Schema     string                `json:"$schema"`
	Priorities priorities            `json:"default-priorities"`
	Providers  map[string]provider   `json:"providers"`
	Variants   map[string]properties `json:"variants"`
}

// priorities order the namespaces, best first.
type priorities struct {
	Namespace []string `json:"namespace"`
}

// provider is a program that tells an installer which properties the machine has.
type provider struct {
	Requires  []string `json:"requires"`
	PluginAPI string   `json:"plugin-api,omitempty"`
}

// describeVariants returns the document for variants of one version.
func describeVariants(list []Variant) variantDocument {
	d := variantDocument{
		Schema:     variantSchema,
		Priorities: priorities{[]string{nvidia, x86}},
		Providers: map[string]provider{
			nvidia: {[]string{"nvidia-variant-provider>=0.0.1,<1"}, "nvidia_variant_provider.plugin:NvidiaVariantPlugin"},
			x86:    {Requires: []string{"x86-64-variant-provider"}},
		},
		Variants: map[string]properties{},
	}
	for _, v := range list {
		if v.Label != "" {
			d.Variants[v.Label] = v.properties
		}
	}
	return d
}

// anchor is a link on the page of an index.
type anchor struct {
	Name, Link, SHA256, MetadataSHA256, RequiresPython string
	Size                                               int64
}

// Href is the link with the hash.
func (a anchor) Href() template.URL {
	return template.URL(a.Link + "#sha256=" + a.SHA256) //nolint:gosec // a wheel's name has no character that means anything there
}

// pages returns the documents of the variants, and the pages that name these and the wheels.
func (x VariantIndex) pages() ([]file, error) {
	versions := map[string][]Variant{}
	var links []anchor
	for _, v := range x.Variants {
		versions[v.version] = append(versions[v.version], v)
		links = append(links, anchor{v.Name, Wheel{Name: v.Name}.Link(), v.SHA256, hashOf(v.metadata), v.source.requiresPython, v.size})
	}
	var files []file
	for _, version := range slices.Sorted(maps.Keys(versions)) {
		text, err := document(describeVariants(versions[version]))
		if err != nil {
			return nil, err
		}
		name := project + "-" + version + "-variants.json"
		files = append(files, file{path: path.Join(x.Name, project, name), text: text})
		links = append(links, anchor{Name: name, Link: Wheel{Name: name}.Link(), SHA256: hashOf(text), Size: int64(len(text))})
	}
	list, err := render("variants.html.tmpl", struct {
		Project string
		Files   []anchor
	}{project, links})
	if err != nil {
		return nil, err
	}
	root, err := render("simple.html.tmpl", struct{ Name, Project string }{x.Name, project})
	return append(files, file{path: path.Join(x.Name, project, htmlPage), text: list}, file{path: path.Join(x.Name, htmlPage), text: root}), err
}

func hashOf(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
