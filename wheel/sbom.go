package wheel

import (
	"bytes"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/CycloneDX/cyclonedx-go"
)

// SBOMName is the place of the SBOM in a wheel's dist-info (PEP 770).
const SBOMName = "sboms/dsbuild.cdx.json"

// newSBOM returns the SBOM of a wheel in CycloneDX. It lists the wheel's compiled files with their hashes, their
// variants with the toolkit, the sources, and the software of the build environment (scope excluded: it is not
// inside). It has no time and no serial number, so that the wheel is reproducible.
func newSBOM(m Manifest, b Build, c Contents, files map[string]string) ([]byte, error) {
	bom := cyclonedx.NewBOM()
	purl := pypiURL(c.Name, m.Version)
	if m.BuildTag() != "" { // other files can have the same version
		purl += "?file_name=" + url.QueryEscape(m.Name)
	}
	bom.Metadata = &cyclonedx.Metadata{
		Component: &cyclonedx.Component{
			BOMRef: purl, Type: cyclonedx.ComponentTypeLibrary, Name: c.Name, Version: m.Version, PackageURL: purl,
			Properties: &[]cyclonedx.Property{
				{Name: "dsbuild:plan_digest", Value: m.PlanDigest},
				{Name: "dsbuild:archs", Value: strings.Join(m.Archs, " ")},
				{Name: "dsbuild:ptx", Value: strings.Join(m.PTX, " ")},
				{Name: "dsbuild:cpu", Value: m.CPU},
			},
		},
	}
	components := []cyclonedx.Component{{
		BOMRef: "source", Type: cyclonedx.ComponentTypeLibrary, Name: c.Name, Version: m.Source.Ref,
		PackageURL:  pypiURL(c.Name, m.Source.Ref),
		Description: "sources, kind " + m.Source.Kind, Hashes: sha256Hash(m.Source.SHA256),
	}}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		file := cyclonedx.Component{
			BOMRef: "file:" + path, Type: cyclonedx.ComponentTypeFile, Name: path, Hashes: sha256Hash(files[path]),
		}
		if v, _ := variantOf(m.Variants, Extension{Path: path}); v.Name != "" {
			file.Properties = &[]cyclonedx.Property{{Name: "dsbuild:variant", Value: v.Name}}
			if v.Toolkit != "" {
				*file.Properties = append(*file.Properties, cyclonedx.Property{Name: "dsbuild:toolkit", Value: v.Toolkit})
			}
		}
		components = append(components, file)
	}
	for _, p := range b.Packages {
		name, version := p.nameAndVersion()
		components = append(components, cyclonedx.Component{
			BOMRef: p.PURL, Type: cyclonedx.ComponentTypeLibrary, Scope: cyclonedx.ScopeExcluded,
			Name: name, Version: version, PackageURL: p.PURL, Hashes: sha256Hash(p.Archive),
		})
	}
	bom.Components = &components
	var out bytes.Buffer
	enc := cyclonedx.NewBOMEncoder(&out, cyclonedx.BOMFileFormatJSON).SetPretty(true).SetEscapeHTML(false)
	if err := enc.EncodeVersion(bom, cyclonedx.SpecVersion1_6); err != nil {
		return nil, fmt.Errorf("SBOM: %w", err)
	}
	return out.Bytes(), nil
}

// pypiURL is the package URL (purl) of a release.
func pypiURL(name, version string) string {
	return "pkg:pypi/" + name + "@" + url.QueryEscape(version)
}

// Python returns the name and the version of a Python package; ok is false for any other.
func (p Package) Python() (name, version string, ok bool) {
	name, version = p.nameAndVersion()
	return name, version, strings.HasPrefix(p.PURL, "pkg:pypi/")
}

// nameAndVersion reads the package's URL.
func (p Package) nameAndVersion() (name, version string) {
	path, _, _ := strings.Cut(p.PURL, "?")
	base, version, _ := strings.Cut(path, "@")
	name = base[strings.LastIndex(base, "/")+1:]
	if plain, err := url.PathUnescape(name); err == nil {
		name = plain
	}
	if plain, err := url.PathUnescape(version); err == nil {
		version = plain
	}
	return name, version
}

func sha256Hash(hex string) *[]cyclonedx.Hash {
	if hex == "" {
		return nil
	}
	return &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex}}
}

// readSBOM returns the hashes of the files in an SBOM.
func readSBOM(text []byte) (files map[string]string, err error) {
	var bom cyclonedx.BOM
	if err := cyclonedx.NewBOMDecoder(bytes.NewReader(text), cyclonedx.BOMFileFormatJSON).Decode(&bom); err != nil {
		return nil, err
	}
	files = map[string]string{}
	if bom.Components == nil {
		return files, nil
	}
	for _, c := range *bom.Components {
		if c.Type == cyclonedx.ComponentTypeFile && c.Hashes != nil && len(*c.Hashes) == 1 {
			files[c.Name] = (*c.Hashes)[0].Value
		}
	}
	return files, nil
}
