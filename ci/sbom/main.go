// Command sbom describes a Go program as a CycloneDX document: its
// modules with their versions and hashes, as the Go tool has noted them in the program.
//
//	go run ./ci/sbom bin/dsbuild dsbuild.cdx.json
package main

import (
	"cmp"
	"debug/buildinfo"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/CycloneDX/cyclonedx-go"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: sbom PROGRAM FILE")
		os.Exit(2)
	}
	if err := writeSBOM(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func writeSBOM(program, file string) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	enc := cyclonedx.NewBOMEncoder(out, cyclonedx.BOMFileFormatJSON)
	if err := enc.SetPretty(true).EncodeVersion(makeDocument(info), cyclonedx.SpecVersion1_6); err != nil {
		return err
	}
	return out.Close()
}

// makeDocument makes the SBOM without date or serial number, so that the same program gives the
// same SBOM.
func makeDocument(info *buildinfo.BuildInfo) *cyclonedx.BOM {
	bom := cyclonedx.NewBOM()
	self := makeComponent(&info.Main, cyclonedx.ComponentTypeApplication)
	bom.Metadata = &cyclonedx.Metadata{Component: &self}
	standard := makeComponent(&debug.Module{Path: "std", Version: info.GoVersion}, cyclonedx.ComponentTypeLibrary)
	components := []cyclonedx.Component{standard}
	needs := []string{standard.BOMRef}
	for _, m := range info.Deps {
		c := makeComponent(cmp.Or(m.Replace, m), cyclonedx.ComponentTypeLibrary)
		components, needs = append(components, c), append(needs, c.BOMRef)
	}
	bom.Components = &components
	bom.Dependencies = &[]cyclonedx.Dependency{{Ref: self.BOMRef, Dependencies: &needs}}
	return bom
}

// makeComponent names a module as package URLs do. The hash is go.sum's hash of all files of the
// module. CycloneDX does not know this kind of digest, so it is a property.
func makeComponent(m *debug.Module, kind cyclonedx.ComponentType) cyclonedx.Component {
	purl := "pkg:golang/" + m.Path + "@" + m.Version
	c := cyclonedx.Component{BOMRef: purl, Type: kind, Name: m.Path, Version: m.Version, PackageURL: purl}
	if m.Sum != "" {
		c.Properties = &[]cyclonedx.Property{{Name: "go:sum", Value: m.Sum}}
	}
	return c
}
