package pipeline

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"deps.dev/util/semver"
	"golang.org/x/net/http/httpproxy"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/httpclient"
	"github.com/dsbuild/dsbuild/internal/pyindex"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Releases looks up releases in the package indexes of a site if the tables do not know them. It
// adds its findings to the tables, and the resolver decides by these. If an index does not
// answer, the tables stay unchanged. A lookup fails only when it is interrupted.
type Releases struct {
	client  *pyindex.Client
	indexes []string // the package index, then those beside it
	torch   string   // below it lie torch's own indexes: cu126, cu128
}

// The indexes that are used if the site names no others.
const (
	packageIndex = "https://pypi.org/simple"
	torchIndex   = "https://download.pytorch.org/whl"
)

// Releases returns a lookup in the site's indexes.
func (s Site) Releases() *Releases {
	return &Releases{
		client:  pyindex.New(s.Transport()),
		indexes: append([]string{cmp.Or(s.variables["PIP_INDEX_URL"], packageIndex)}, strings.Fields(s.variables["PIP_EXTRA_INDEX_URL"])...),
		torch:   cmp.Or(s.variables[torchIndexes], torchIndex),
	}
}

// Transport reaches servers in the same way as pip and uv: through the site's proxies, with its
// certificates. It has the policy of tries and time limits of internal/httpclient.
func (s Site) Transport() http.RoundTripper {
	all := s.variables["ALL_PROXY"]
	proxy := httpproxy.Config{
		HTTPProxy: cmp.Or(s.variables["HTTP_PROXY"], all), HTTPSProxy: cmp.Or(s.variables["HTTPS_PROXY"], all), NoProxy: s.variables["NO_PROXY"],
	}
	t := &http.Transport{Proxy: func(r *http.Request) (*url.URL, error) { return proxy.ProxyFunc()(r.URL) }, ForceAttemptHTTP2: true}
	if pool, err := x509.SystemCertPool(); err == nil && pool.AppendCertsFromPEM([]byte(s.ca)) {
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

// noteYanked notes that dsbuild takes a release although its index withdrew it.
func (f *Found) noteYanked(what, reason string) {
	f.addNote("%s was withdrawn from the package index (yanked): dsbuild uses it because you named it%s", what, strings.TrimSuffix(": "+ui.Shorten(reason, 200), ": "))
}

// listFiles lists a project's files in the package index and in the additional ones. It notes an
// index that does not answer.
func (r *Releases) listFiles(ctx context.Context, project string, f *Found) ([]pyindex.File, error) {
	var all []pyindex.File
	for _, index := range r.indexes {
		files, err := r.client.Files(ctx, index, project)
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil && !errors.Is(err, pyindex.ErrNoProject):
			f.addNote("dsbuild uses its own tables, because the package index did not answer for %s: %v", project, err)
		}
		all = append(all, files...)
	}
	return all, nil
}

// DeepSpeed looks up a release of DeepSpeed, or compat.Latest, the newest. The hash
// that the index has for its source distribution becomes part of the plan.
func (r *Releases) DeepSpeed(ctx context.Context, t *compat.Tables, asked string) (Found, error) {
	f := Found{Tables: t, Version: asked}
	var known []string
	for _, d := range t.DeepSpeeds {
		known = append(known, d.Version)
	}
	oldest := known[len(known)-1]
	if asked == "" || slices.Contains(known, asked) || asked != compat.Latest && order(asked, oldest) < 0 {
		return f, nil
	}
	files, err := r.listFiles(ctx, "deepspeed", &f)
	if err != nil {
		return f, err
	}
	found, lacks := map[string]compat.DeepSpeed{}, "no source distribution of it"
	for _, file := range files {
		v, err := semver.PyPI.Parse(file.Version)
		named := file.Version == asked
		switch _, twice := found[file.Version]; {
		case twice || file.Wheel != nil || err != nil || slices.Contains(known, file.Version) || order(file.Version, oldest) < 0:
		case !named && (file.Yanked || v.IsPrerelease() || !isRelease(file.Version)):
		case file.SHA256 == "" && named:
			lacks = "no sha256 of it, which a plan needs (--deepspeed also accepts the file)"
		case file.SHA256 == "":
		default:
			found[file.Version] = compat.DeepSpeed{Version: file.Version, SHA256: file.SHA256}
			if named && file.Yanked {
				f.noteYanked("DeepSpeed "+asked, file.Reason)
			}
		}
	}
	f.Tables = t.AddDeepSpeeds(slices.Collect(maps.Values(found)))
	if asked == compat.Latest {
		f.Version = f.Tables.DeepSpeeds[0].Version
	}
	if _, ok := found[f.Version]; ok {
		f.addNote("DeepSpeed %s is not in the tables of this dsbuild, which treats it like %s", f.Version, compat.NearestVersions(f.Version, known)[0])
	} else if len(files) > 0 && f.Version == asked {
		f.addNote("DeepSpeed %s: the package index has %s", f.Version, lacks)
	}
	return f, nil
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
