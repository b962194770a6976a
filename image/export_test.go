package image

import (
	"context"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// StartScript is the script that enroot runs.
var StartScript = startScript

// ShowFacts is the command that prints flags.
const ShowFacts = showFacts

// ReadBase reads a base on disk to its last layer.
func ReadBase(ctx context.Context, file string) {
	b, err := openBase(ctx, file, v1.Platform{OS: "linux", Architecture: "amd64"}, nil)
	if err != nil {
		return
	}
	defer b.close() //nolint:errcheck // it was only read
	if files, err := listLayers(ctx, b.image); err == nil {
		_, _ = files.facts("", nil)
	}
}

// FactsOfSBOM returns what an SBOM says.
func FactsOfSBOM(text []byte) []Fact { return factsOfSBOM(text).list() }
