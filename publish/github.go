package publish

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"github.com/dsbuild/dsbuild/internal/hint"
)

// github is a release of GitHub: each file is an asset of it. GitHub keeps a started upload that
// was cut off as an asset in the state "starter", which is no file; dsbuild removes it and sends
// the file again.
type github struct {
	run     *run
	caller  *caller
	repo    string // address of the repository in the API
	release struct {
		ID        int64  `json:"id"`
		UploadURL string `json:"upload_url"`
	}

	mutex  sync.Mutex
	assets map[string]asset // by name
}

// asset is a file of a release.
type asset struct {
	ID     int64  `json:"id"`
	Name   string `json:"name"`
	State  string `json:"state"`
	Size   int64  `json:"size"`
	Digest string `json:"digest"` // sha256:…; servers before June 2025 have none
}

func (r *run) openGitHub(ctx context.Context) (place, error) {
	api := strings.TrimRight(cmp.Or(r.Getenv("GITHUB_API_URL"), "https://api.github.com"), "/")
	p := &github{run: r, caller: newCaller(r.Transport), repo: api + "/repos/" + r.To.name}
	p.caller.header.Set("Accept", "application/vnd.github+json")
	p.caller.header.Set("X-GitHub-Api-Version", "2022-11-28")
	if token := r.secrets.add(cmp.Or(r.Getenv("GH_TOKEN"), r.Getenv("GITHUB_TOKEN"))); token != "" {
		p.caller.header.Set("Authorization", "Bearer "+token)
	}
	err := r.retry(ctx, func(int) error {
		return p.caller.do(ctx, request{method: http.MethodGet, address: p.repo + "/releases/tags/" + url.PathEscape(r.To.tag)}, &p.release)
	})
	if statusOf(err) == http.StatusNotFound {
		return nil, hint.With(err, "create the release %s first; for a private repository set GITHUB_TOKEN", r.To.tag)
	}
	if err != nil {
		return nil, withAccessHint(err, p.access())
	}
	return eachFile{r, p}, p.checkUploadURL(api)
}

// checkUploadURL accepts an address for uploads on the API's own domain only, because the token
// goes there.
func (p *github) checkUploadURL(api string) error {
	p.release.UploadURL, _, _ = strings.Cut(p.release.UploadURL, "{")
	a, errA := url.Parse(api)
	b, errB := url.Parse(p.release.UploadURL)
	if errA != nil || errB != nil || a.Scheme != b.Scheme || a.Host != b.Host && !sameDomain(a.Host, b.Host) {
		return fmt.Errorf("%s: it names %q for uploads, which is another site", p.repo, p.release.UploadURL)
	}
	return nil
}

// sameDomain reports whether host names differ in their first label only: api.github.com and
// uploads.github.com.
func sameDomain(a, b string) bool {
	_, x, _ := strings.Cut(a, ".")
	_, y, _ := strings.Cut(b, ".")
	return x == y && strings.Contains(x, ".")
}

func (p *github) access() string {
	return "dsbuild takes GH_TOKEN or GITHUB_TOKEN, which must be allowed to write contents of the repository"
}

// find returns an asset. The list is read once, and again after a change.
func (p *github) find(ctx context.Context, name string) (asset, bool, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.assets == nil {
		all := map[string]asset{}
		err := eachPage(func(page int) (int, error) {
			var list []asset
			err := p.caller.do(ctx, request{method: http.MethodGet, address: fmt.Sprintf("%s/releases/%d/assets?per_page=%d&page=%d", p.repo, p.release.ID, pageSize, page)}, &list)
			for _, a := range list {
				all[a.Name] = a
			}
			return len(list), err
		})
		if err != nil {
			return asset{}, false, err
		}
		p.assets = all
	}
	a, ok := p.assets[name]
	return a, ok, nil
}

// forget makes find read the list again.
func (p *github) forget() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.assets = nil
}

const (
	pageSize = 100
	maxPages = 100
)

// eachPage reads the pages of a list until one is not full.
func eachPage(read func(page int) (entries int, err error)) error {
	for page := 1; page <= maxPages; page++ {
		if entries, err := read(page); err != nil || entries < pageSize {
			return err
		}
	}
	return fmt.Errorf("a list has more than %d entries", pageSize*maxPages)
}

func (p *github) lookFile(ctx context.Context, f File) (state, error) {
	a, ok, err := p.find(ctx, f.Name)
	switch {
	case err != nil:
		return absent, err
	case !ok || a.State != "uploaded":
		return absent, nil
	case a.Size != f.Size:
		return other, nil
	}
	sum, known := strings.CutPrefix(a.Digest, "sha256:")
	if !known {
		if sum, err = p.hashAsset(ctx, a); err != nil {
			return absent, err
		}
	}
	if sum != f.SHA256 {
		return other, nil
	}
	return same, nil
}

// hashAsset downloads an asset. GitHub redirects to its storage; the token does not go there.
func (p *github) hashAsset(ctx context.Context, a asset) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.assetURL(a), nil)
	if err != nil {
		return "", err
	}
	req.Header = p.caller.header.Clone()
	req.Header.Set("Accept", "application/octet-stream")
	res, err := (&http.Client{Transport: p.run.Transport}).Do(req) // net/http keeps Authorization from other hosts
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return "", newStatusError(request{method: req.Method, address: p.assetURL(a)}, res, nil)
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, res.Body); err != nil {
		return "", errors.Join(io.ErrUnexpectedEOF, err)
	}
	return hexSum(sum), nil
}

func (p *github) assetURL(a asset) string {
	return p.repo + "/releases/assets/" + strconv.FormatInt(a.ID, 10)
}

func (p *github) putFile(ctx context.Context, f File, sent func(int64)) error {
	a, ok, err := p.find(ctx, f.Name)
	if err != nil {
		return err
	}
	defer p.forget()
	if ok && a.State != "uploaded" { // lookFile has found no file of this name
		if err := p.caller.do(ctx, request{method: http.MethodDelete, address: p.assetURL(a)}, nil); err != nil && statusOf(err) != http.StatusNotFound {
			return err
		}
	}
	var stored asset
	err = f.withBody(sent, func(b *body) error {
		return p.caller.do(ctx, request{
			method: http.MethodPost, address: p.release.UploadURL + "?name=" + url.QueryEscape(f.Name),
			kind: "application/octet-stream", body: b, size: f.Size,
		}, &stored)
	})
	switch {
	case statusOf(err) == http.StatusUnprocessableEntity && strings.Contains(err.Error(), "already_exists"):
		p.forget() // the asset came meanwhile
		return compareTaken(ctx, p.lookFile, f, err)
	case err != nil:
		return err
	case stored.Name != f.Name:
		return fmt.Errorf("%s: GitHub has stored %s under the name %q", p.repo, f.Name, stored.Name)
	}
	return nil
}
