package pipeline

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"deps.dev/util/semver"
	"golang.org/x/net/http/httpproxy"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/compat/evidence"
	"github.com/dsbuild/dsbuild/internal/httpclient"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/pyindex"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

// Releases looks up releases that are not in the tables: of DeepSpeed in a site's package indexes, of torch
// in torch's own. It adds them to the tables that the resolver uses. If an index does not respond, the
// tables stay unchanged. A lookup fails only if it is interrupted.
type Releases struct {
	client  *pyindex.Client
	indexes []string // the package index, then the additional ones
	torch   string   // URL prefix of torch's own indexes: cu126, cu128
}

// The default indexes.
const (
	packageIndex = "https://pypi.org/simple"
	torchIndex   = "https://download.pytorch.org/whl"
)

// Releases returns a lookup in the site's indexes.
func (n Network) Releases() *Releases {
	first := cmp.Or(n.variables["PIP_INDEX_URL"], packageIndex)
	return &Releases{
		client:  pyindex.New(n.Transport()),
		indexes: append([]string{first}, strings.Fields(n.variables["PIP_EXTRA_INDEX_URL"])...),
		torch:   cmp.Or(n.variables[torchIndexes], torchIndex),
	}
}

// Transport uses the site's proxies and certificates, as pip and uv do, with the retries and
// timeouts of internal/httpclient.
func (n Network) Transport() http.RoundTripper {
	all := n.variables["ALL_PROXY"]
	proxy := httpproxy.Config{
		HTTPProxy:  cmp.Or(n.variables["HTTP_PROXY"], all),
		HTTPSProxy: cmp.Or(n.variables["HTTPS_PROXY"], all),
		NoProxy:    n.variables["NO_PROXY"],
	}
	t := &http.Transport{
		Proxy:             func(r *http.Request) (*url.URL, error) { return proxy.ProxyFunc()(r.URL) },
		ForceAttemptHTTP2: true,
	}
	if pool, err := x509.SystemCertPool(); err == nil && pool.AppendCertsFromPEM([]byte(n.ca)) {
		t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return httpclient.New(t)
}

// Found is the result of a lookup: the tables with the release, the release, and notes for
// the user.
type Found struct {
	Tables  *compat.Tables
	Version string
	Notes   []string
}

func (f *Found) addNote(format string, args ...any) {
	f.Notes = append(f.Notes, fmt.Sprintf(format, args...))
}

// DeepSpeed looks up a release of DeepSpeed, or compat.Latest. The index's hash of the source
// distribution becomes part of the plan.
func (r *Releases) DeepSpeed(ctx context.Context, t *compat.Tables, asked string) (Found, error) {
	f := Found{Tables: t, Version: asked}
	known := lists.Map(t.DeepSpeeds, func(d compat.DeepSpeed) string { return d.Version })
	oldest := known[len(known)-1]
	if asked == "" || slices.Contains(known, asked) || asked != compat.Latest && order(asked, oldest) < 0 {
		return f, nil
	}
	var files []pyindex.File
	for _, index := range r.indexes {
		more, err := r.client.Files(ctx, index, "deepspeed")
		switch {
		case ctx.Err() != nil:
			return f, context.Cause(ctx)
		case err != nil && !errors.Is(err, pyindex.ErrNoProject):
			f.addNote("using dsbuild's own tables, because the package index did not respond for deepspeed: %v", err)
		}
		files = append(files, more...)
	}
	found, sdists := map[string]compat.DeepSpeed{}, map[string]pyindex.File{}
	for _, file := range files {
		v, err := semver.PyPI.Parse(file.Version)
		named := file.Version == asked
		if _, twice := found[file.Version]; twice || file.Wheel != nil || file.SHA256 == "" || err != nil ||
			slices.Contains(known, file.Version) || order(file.Version, oldest) < 0 ||
			!named && (file.Yanked || v.IsPrerelease() || !isRelease(file.Version)) {
			continue
		}
		found[file.Version], sdists[file.Version] = compat.DeepSpeed{Version: file.Version, SHA256: file.SHA256}, file
		if named && file.Yanked {
			f.addNote("DeepSpeed %s was yanked from the package index; used because you requested it%s",
				asked, strings.TrimSuffix(": "+ui.Shorten(file.Reason, 200), ": "))
		}
	}
	f.Tables = t.AddDeepSpeeds(slices.Collect(maps.Values(found)))
	if asked == compat.Latest {
		f.Version = f.Tables.DeepSpeeds[0].Version
	}
	if _, ok := found[f.Version]; ok {
		f.addNote("DeepSpeed %s is not in dsbuild's tables, which treat it like %s",
			f.Version, compat.NearestVersions(f.Version, known)[0])
		return f, r.compareOps(ctx, &f, sdists[f.Version])
	} else if len(files) > 0 && f.Version == asked {
		f.addNote("DeepSpeed %s: the package index has no source distribution with a sha256, "+
			"which a plan needs (--deepspeed also accepts the file)", f.Version)
	}
	return f, nil
}

// compareOps compares the ops of a release that the tables lack with those that were proven, by its source distribution.
func (r *Releases) compareOps(ctx context.Context, f *Found, sdist pyindex.File) error {
	sources, err := ReadSdist(ctx, r.client, sdist)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		f.addNote("cannot compare the ops of DeepSpeed %s with those that are proven: %v", f.Version, err)
		return nil
	}
	f.Tables = f.Tables.WithChanges(f.Version, f.Tables.Evidence.Judge(sources))
	return nil
}

// ReadSdist downloads a source distribution of DeepSpeed, which must have the index's sha256, and returns what
// determines its ops. Errors begin with the file's name.
func ReadSdist(ctx context.Context, client *pyindex.Client, sdist pyindex.File) (*evidence.Sources, error) {
	var text []byte
	err := client.Download(ctx, sdist, func(body io.Reader) (err error) {
		text, err = io.ReadAll(io.LimitReader(body, maxSdist+1))
		return err
	})
	if sum := sha256.Sum256(text); err == nil && hex.EncodeToString(sum[:]) != sdist.SHA256 {
		err = errors.New("its sha256 differs from the index")
	}
	var sources *evidence.Sources
	if err == nil {
		sources, err = evidence.Read(bytes.NewReader(text))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", sdist.Name, err)
	}
	return sources, nil
}

// maxSdist limits a source distribution to 30 times the size of DeepSpeed's.
const maxSdist = 64 << 20

// Torch looks up the torch that s names in torch's own indexes, one for each CUDA, if the tables lack it
// for the CUDA and the driver of s.
func (r *Releases) Torch(ctx context.Context, t *compat.Tables, request wheel.Request) (Found, error) {
	f := Found{Tables: t, Version: request.Torch}
	if request.Torch == "" || !isRelease(request.Torch) ||
		order(request.Torch, t.Torches[len(t.Torches)-1].Version) < 0 || t.OffersTorch(request) {
		return f, nil
	}
	for _, cuda := range t.CUDAsFor(request) {
		name := "cu" + strings.ReplaceAll(cuda, ".", "")
		files, err := r.client.Files(ctx, r.torch+"/"+name, "torch")
		if ctx.Err() != nil {
			return f, context.Cause(ctx)
		}
		if err != nil && !errors.Is(err, pyindex.ErrNoProject) {
			f.addNote("%s is not in dsbuild's tables, "+
				"and PyTorch's index did not respond (set a mirror with %s): %v", askedTorch(request), torchIndexes, err)
			return f, nil // the other indexes would not respond either
		}
		row := compat.Torch{CUDA: cuda, Index: name, SHA256: map[string]string{}}
		for _, file := range files {
			version, local, _ := strings.Cut(file.Version, "+")
			v, err := semver.PyPI.Parse(version)
			minor := strings.Count(request.Torch, ".") == 1 && strings.HasPrefix(version, request.Torch+".") &&
				err == nil && !v.IsPrerelease()
			if file.Wheel == nil || local != name || version != request.Torch && !minor || order(version, row.Version) < 0 {
				continue
			}
			if version != row.Version {
				row.Version, row.Pythons, row.SHA256 = version, nil, map[string]string{}
			}
			for _, tag := range file.Wheel.Platforms {
				python := strings.TrimPrefix(tag.Python, "cp3")
				if tag.ABI == tag.Python && python != tag.Python && linuxX86.MatchString(tag.Platform) {
					row.SHA256["3."+python] = file.SHA256
				}
			}
		}
		if row.Pythons = slices.SortedFunc(maps.Keys(row.SHA256), order); len(row.Pythons) > 0 {
			f.Tables = t.AddTorch(row)
			return f, nil
		}
	}
	f.addNote("%s is neither in dsbuild's tables nor on PyTorch's indexes", askedTorch(request))
	return f, nil
}

var linuxX86 = regexp.MustCompile(`^(many)?linux[0-9_]*_x86_64$`)

// askedTorch describes the requested torch.
func askedTorch(request wheel.Request) string {
	text := "torch " + request.Torch
	if request.CUDA != "" {
		text += " for CUDA " + request.CUDA
	}
	if request.Driver != "" {
		text += " for driver " + request.Driver
	}
	return text
}

// order compares versions as PEP 440 does. It compares other texts as strings.
func order(a, b string) int {
	x, errX := semver.PyPI.Parse(a)
	y, errY := semver.PyPI.Parse(b)
	if errX != nil || errY != nil {
		return cmp.Compare(a, b)
	}
	return x.Compare(y)
}
