package pipeline

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/internal/fault"
)

// nvccTimeout is the timeout for a mirror's response.
const nvccTimeout = 8 * time.Second

// CheckNvcc returns an error if a plan needs Debian's package of nvcc for CUDA 12 and its mirror does not have it: a
// site may have only Python's package indexes, and a plan's images take minutes until they need it.
func (n Network) CheckNvcc(ctx context.Context, p *Plan) error {
	needs := func(e Environment) bool { return e.Toolchain.CUDASource == compat.Nvcc12 }
	if n.toolkit != "" || !needs(p.Environment(Toolchain)) && !slices.ContainsFunc(slices.Collect(maps.Values(p.Environments)), needs) {
		return nil
	}
	mirror := n.variables[aptMirror]
	if mirror != "" {
		mirror += "/debian"
	}
	ctx, cancel := context.WithTimeout(ctx, nvccTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodHead, dockerfiles.NvccURL(mirror), nil)
	if err != nil {
		return err
	}
	answer, err := n.Transport().RoundTrip(request)
	if err == nil {
		_ = answer.Body.Close()
		if answer.StatusCode == http.StatusOK {
			return nil
		}
		err = fmt.Errorf("%s answered %s", request.URL, answer.Status)
	}
	return n.Error(p.NvccError(err))
}

// NvccError returns the error for a plan whose nvcc for CUDA 12 cannot be downloaded.
func (p *Plan) NvccError(err error) error {
	hint := "set " + aptMirror + " to a mirror of Debian, or pass the package as a file: --nvcc-deb FILE"
	if p.Toolchain().CUDASource != compat.Nvcc12 {
		hint = "build for CUDA 13 only: --cuda 13; or " + hint
	}
	return fault.New(fault.Usage, hint, "cannot download nvcc for CUDA 12, a Debian package: %w", err)
}
