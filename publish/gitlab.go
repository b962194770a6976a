package publish

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/dsbuild/dsbuild/internal/hint"
)

// gitlab is a release of GitLab: each file is in the project's generic package of the release's
// tag, and the release has a link to it. The link is made after the file.
type gitlab struct {
	run     *run
	caller  *caller
	project string // address of the project in the API
	tag     string

	// GitLab creates a package with its first file, and fails if two arrive at once.
	serial sync.Mutex

	mutex sync.Mutex
	known *gitlabFiles
}

// gitlabPackage is the name of the generic package.
const gitlabPackage = "deepspeed"

// gitlabFiles are the files of the package and the links of the release.
type gitlabFiles struct {
	sums  map[string][]string // of the files, by name: GitLab keeps several of one name
	links map[string]string   // addresses by name
}

func (r *run) openGitLab(ctx context.Context) (place, error) {
	api := strings.TrimRight(cmp.Or(r.Getenv("CI_API_V4_URL"), "https://gitlab.com/api/v4"), "/")
	p := &gitlab{run: r, caller: newCaller(r.Transport), project: api + "/projects/" + url.PathEscape(r.To.name), tag: r.To.tag}
	if token := r.secrets.add(r.Getenv("GITLAB_TOKEN")); token != "" {
		p.caller.header.Set("Private-Token", token)
	} else if token := r.secrets.add(r.Getenv("CI_JOB_TOKEN")); token != "" {
		p.caller.header.Set("Job-Token", token)
	}
	err := r.retry(ctx, func(int) error {
		return p.caller.do(ctx, request{method: http.MethodGet, address: p.release()}, nil)
	})
	if statusOf(err) == http.StatusNotFound {
		return nil, hint.With(err, "create the release %s first; for a private project set GITLAB_TOKEN", p.tag)
	}
	if err != nil {
		return nil, withAccessHint(err, p.access())
	}
	return eachFile{r, p}, nil
}

func (p *gitlab) release() string { return p.project + "/releases/" + url.PathEscape(p.tag) }

func (p *gitlab) fileURL(name string) string {
	return p.project + "/packages/generic/" + gitlabPackage + "/" + url.PathEscape(p.tag) + "/" + strings.ReplaceAll(url.PathEscape(name), "+", "%2B")
}

func (p *gitlab) access() string {
	return "dsbuild takes GITLAB_TOKEN, with the scope api, or CI_JOB_TOKEN in a job"
}

// list returns the files and links. They are read once, and again after a change.
func (p *gitlab) list(ctx context.Context) (*gitlabFiles, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.known != nil {
		return p.known, nil
	}
	all := &gitlabFiles{map[string][]string{}, map[string]string{}}
	type link struct{ Name, URL string }
	err := readPages(ctx, p.caller, p.release()+"/assets/links?", func(l link) error {
		all.links[l.Name] = l.URL
		return nil
	})
	if err != nil {
		return nil, err
	}
	type pack struct {
		ID            int64
		Name, Version string
	}
	query := "/packages?package_type=generic&package_name=" + gitlabPackage + "&package_version=" + url.QueryEscape(p.tag) + "&"
	err = readPages(ctx, p.caller, p.project+query, func(found pack) error {
		if found.Name != gitlabPackage || found.Version != p.tag { // GitLab also finds similar names
			return nil
		}
		type file struct {
			Name string `json:"file_name"`
			Sum  string `json:"file_sha256"`
		}
		return readPages(ctx, p.caller, fmt.Sprintf("%s/packages/%d/package_files?", p.project, found.ID), func(f file) error {
			all.sums[f.Name] = append(all.sums[f.Name], f.Sum)
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	p.known = all
	return all, nil
}

// readPages calls use for each entry of a list.
func readPages[T any](ctx context.Context, c *caller, address string, use func(T) error) error {
	return eachPage(func(page int) (int, error) {
		var list []T
		if err := c.do(ctx, request{method: http.MethodGet, address: fmt.Sprintf("%sper_page=%d&page=%d", address, pageSize, page)}, &list); err != nil {
			return 0, err
		}
		for _, one := range list {
			if err := use(one); err != nil {
				return 0, err
			}
		}
		return len(list), nil
	})
}

func (p *gitlab) forget() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.known = nil
}

func (p *gitlab) lookFile(ctx context.Context, f File) (state, error) {
	all, err := p.list(ctx)
	if err != nil {
		return absent, err
	}
	link, linked := all.links[f.Name]
	if linked && link != p.fileURL(f.Name) {
		return other, nil
	}
	for _, sum := range all.sums[f.Name] {
		if sum != f.SHA256 {
			return other, nil
		}
	}
	if !linked || len(all.sums[f.Name]) == 0 {
		return absent, nil
	}
	return same, nil
}

// putFile sends the file, and then links it, whichever is missing.
func (p *gitlab) putFile(ctx context.Context, f File, sent func(int64)) error {
	p.serial.Lock()
	defer p.serial.Unlock()
	all, err := p.list(ctx)
	if err != nil {
		return err
	}
	defer p.forget()
	if len(all.sums[f.Name]) > 0 {
		sent(f.Size)
	} else {
		err := f.withBody(sent, func(b *body) error {
			return p.caller.do(ctx, request{method: http.MethodPut, address: p.fileURL(f.Name), kind: "application/octet-stream", body: b, size: f.Size}, nil)
		})
		if err != nil {
			return err
		}
	}
	if all.links[f.Name] != "" {
		return nil
	}
	text, err := json.Marshal(map[string]string{"name": f.Name, "url": p.fileURL(f.Name), "link_type": "package"})
	if err != nil {
		return err
	}
	return p.caller.do(ctx, request{
		method: http.MethodPost, address: p.release() + "/assets/links", kind: "application/json", body: strings.NewReader(string(text)), size: int64(len(text)),
	}, nil)
}
