// Package pyindex reads Python package indexes: the pages that list the files of a
// project (PEP 503 in HTML, PEP 691 in JSON).
package pyindex

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"deps.dev/util/pypi"

	"github.com/dsbuild/dsbuild/internal/httpclient"
)

// maxPage bounds a page of an index, in bytes.
const maxPage = 32 << 20

// ErrNoProject means that an index does not have the project.
var ErrNoProject = errors.New("project not found")

// File is one distribution that an index lists.
type File struct {
	Name    string
	Version string          // in the spelling of the file name
	Wheel   *pypi.WheelInfo // nil for a source distribution
	SHA256  string          // hex, or "" if unknown
	Size    int64           // in bytes, or 0 if unknown
	Yanked  bool            // withdrawn (PEP 592)
	Reason  string          // the reason for Yanked

	url *url.URL
}

// Client queries indexes. It caches pages, except failures.
type Client struct {
	transport *httpclient.Transport
	http      *http.Client

	mutex sync.Mutex
	pages map[string]page
}

type page struct {
	files  []File
	absent error // the index has no such project
}

// New returns a client that uses transport, with the policy of package httpclient.
func New(transport http.RoundTripper) *Client {
	t := httpclient.New(transport)
	return &Client{transport: t, http: &http.Client{Transport: t}, pages: map[string]page{}}
}

// Files lists the distributions of a project in an index. It omits names that no installer would
// understand.
func (c *Client) Files(ctx context.Context, index, project string) ([]File, error) {
	project = pypi.CanonPackageName(project)
	address := strings.TrimRight(index, "/") + "/" + url.PathEscape(project) + "/"
	c.mutex.Lock()
	defer c.mutex.Unlock()
	got, asked := c.pages[address]
	if !asked {
		files, err := c.files(ctx, address, project)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil && !errors.Is(err, ErrNoProject) {
			return nil, err
		}
		got = page{files, err}
		c.pages[address] = got
	}
	return got.files, got.absent
}

// The formats of a page, best first.
const (
	jsonType = "application/vnd.pypi.simple.v1+json"
	htmlType = "application/vnd.pypi.simple.v1+html"
)

func (c *Client) files(ctx context.Context, address, project string) ([]File, error) {
	text, res, err := c.get(ctx, address, jsonType+", "+htmlType+";q=0.2, text/html;q=0.1", maxPage)
	if err != nil {
		return nil, err
	}
	links, err := read(res.Header.Get("Content-Type"), text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", httpclient.Redact(res.Request.URL), err)
	}
	var files []File
	for _, l := range links {
		if f, ok := l.file(res.Request.URL, project); ok {
			files = append(files, f)
		}
	}
	return files, nil
}

// read parses a page in the format of its content type.
func read(contentType string, text []byte) ([]link, error) {
	kind, _, err := mime.ParseMediaType(contentType)
	switch {
	case err != nil:
		return nil, fmt.Errorf("invalid Content-Type: %w", err)
	case kind == jsonType:
		// Read a page of PEP 691.
		var doc struct {
			Meta struct {
				Version string `json:"api-version"`
			} `json:"meta"`
			Files []struct {
				Filename string            `json:"filename"`
				URL      string            `json:"url"`
				Hashes   map[string]string `json:"hashes"`
				Size     int64             `json:"size"`
				Yanked   flag              `json:"yanked"`
			} `json:"files"`
		}
		if err := json.Unmarshal(text, &doc); err != nil {
			return nil, fmt.Errorf("invalid JSON: %w", err)
		}
		if !strings.HasPrefix(doc.Meta.Version, "1.") {
			return nil, fmt.Errorf("unsupported index format version %.20q: want version 1", doc.Meta.Version)
		}
		links := make([]link, 0, len(doc.Files))
		for _, f := range doc.Files {
			links = append(links, link{f.Filename, f.URL, f.Hashes["sha256"], f.Size, f.Yanked.set, f.Yanked.text})
		}
		return links, nil
	case kind == htmlType || kind == "text/html":
		return readHTML(text)
	}
	return nil, fmt.Errorf("unexpected Content-Type %.60q for a project page", kind)
}

// Download calls use with the bytes of the file. If the connection breaks, it retries from the start.
// The caller must verify the digest.
func (c *Client) Download(ctx context.Context, f File, use func(io.Reader) error) error {
	return c.transport.Try(ctx, func(ctx context.Context, _ int) error {
		res, err := c.do(ctx, f.url.String(), "*/*")
		if err != nil {
			return err
		}
		defer res.Body.Close()
		return use(res.Body)
	})
}

// do requests a URL and returns a successful response with an open body. An error contains the URL
// without its login.
func (c *Client) do(ctx context.Context, address, accept string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, errors.New("invalid URL")
	}
	req.Header.Set("Accept", accept)
	where := httpclient.Redact(req.URL)
	res, err := c.http.Do(req)
	if at := new(url.Error); errors.As(err, &at) {
		err = at.Err // at itself shows a token in the place of the user
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	if res.StatusCode != http.StatusOK {
		res.Body.Close()
		return nil, &httpclient.StatusError{Where: where, Status: res.Status, Code: res.StatusCode}
	}
	return res, nil
}

// get fetches at most limit bytes.
func (c *Client) get(
	ctx context.Context, address, accept string, limit int64,
) (text []byte, res *http.Response, err error) {
	err = c.transport.Try(ctx, func(ctx context.Context, _ int) error {
		res, err = c.do(ctx, address, accept)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		text, err = io.ReadAll(io.LimitReader(res.Body, limit+1))
		if err == nil && int64(len(text)) > limit {
			err = fmt.Errorf("response larger than %d MiB", limit>>20)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", httpclient.Redact(res.Request.URL), err)
		}
		return nil
	})
	if code := httpclient.StatusOf(err); code == http.StatusNotFound || code == http.StatusGone {
		at, _ := url.Parse(address) // it was requested
		err = fmt.Errorf("%s: %w", httpclient.Redact(at), ErrNoProject)
	}
	return text, res, err
}
