package image

import (
	"context"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// ShowFacts is the command that prints flags.
const ShowFacts = showFacts

// ReadBase reads a base on disk to its last layer.
func ReadBase(ctx context.Context, file string) {
	b, err := openBase(ctx, file, v1.Platform{OS: "linux", Architecture: "amd64"}, true, nil)
	if err != nil {
		return
	}
	if files, err := readTree(ctx, b.image, []string{"deepspeed"}); err == nil {
		files.facts("")
	}
}
