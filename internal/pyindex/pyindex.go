// Package pyindex reads Python package indexes: the pages that list the files of a
// project (PEP 503 in HTML, PEP 691 in JSON) and the metadata beside a wheel (PEP 658).
package pyindex

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"deps.dev/util/pypi"
)

// Bounds on the answer of an index: bytes of a page and of metadata, and the time for an answer.
const (
	maxPage     = 32 << 20
	maxMetadata = 4 << 20
	patience    = 30 * time.Second
)

// ErrNoProject is the answer of an index that has no such project.
var ErrNoProject = errors.New("it has no such project")

// StatusError is an answer of an index that is no success.
type StatusError struct {
	Where  string // the address
	Status string
	Code   int
}

func (e *StatusError) Error() string { return e.Where + ": it answers " + e.Status }

// File is one distribution that an index lists.
type File struct {
	Name    string
	Version string          // in the spelling of the file name
	Wheel   *pypi.WheelInfo // nil for a source distribution
	SHA256  string          // hex; "" if the index has none
	Size    int64           // in bytes; 0 if the index does not say it
	Yanked  bool            // withdrawn (PEP 592)
	Reason  string          // the reason for Yanked
	// Metadata reports that the index serves METADATA beside the wheel. MetadataSHA256 is its
	// digest.
	Metadata       bool
	MetadataSHA256 string

	url *url.URL
}

// Client queries indexes. It requests each page once.
type Client struct {
	http *http.Client // for pages, with a limit of time
	slow *http.Client // for files, without one

	mutex sync.Mutex
	pages map[string]page
}

type page struct {
	files []File
	err   error
}

// New makes a client that reaches indexes through transport.
func New(transport http.RoundTripper) *Client {
	return &Client{
		http:  &http.Client{Transport: transport, Timeout: patience, CheckRedirect: follow},
		slow:  &http.Client{Transport: transport, CheckRedirect: follow},
		pages: map[string]page{},
	}
}

// follow allows up to four redirects, and none from an encrypted to an unencrypted address.
func follow(req *http.Request, via []*http.Request) error {
	if len(via) >= 5 {
		return errors.New("stopped after 5 redirects")
	}
	if from := via[len(via)-1].URL; from.Scheme == "https" && req.URL.Scheme != "https" {
		return fmt.Errorf("redirected to %s, which is not encrypted", req.URL.Redacted())
	}
	return nil
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
		got.files, got.err = c.files(ctx, address, project)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		c.pages[address] = got
	}
	return got.files, got.err
}

// The forms of a page, best first.
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
		return nil, fmt.Errorf("%s: %w", res.Request.URL.Redacted(), err)
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
		return nil, fmt.Errorf("its answer has no valid Content-Type: %w", err)
	case kind == jsonType:
		return readJSON(text)
	case kind == htmlType || kind == "text/html":
		return readHTML(text)
	}
	return nil, fmt.Errorf("its answer has the type %.60q: not the page of a project", kind)
}

// Metadata fetches the METADATA that the index serves beside a wheel.
func (c *Client) Metadata(ctx context.Context, f File) ([]byte, error) {
	if !f.Metadata {
		return nil, fmt.Errorf("%s: the index has no metadata file for it (PEP 658)", f.Name)
	}
	address := *f.url
	address.Path += ".metadata"
	address.RawPath = ""
	text, _, err := c.get(ctx, address.String(), "*/*", maxMetadata)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	if have := hex.EncodeToString(sum[:]); f.MetadataSHA256 != "" && have != f.MetadataSHA256 {
		return nil, fmt.Errorf("%s: its metadata has sha256 %s, but the index says %s", f.Name, have, f.MetadataSHA256)
	}
	return text, nil
}

// Open requests the file itself. The caller reads and closes it, and compares its digest.
func (c *Client) Open(ctx context.Context, f File) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url.String(), nil)
	if err != nil {
		return nil, errors.New("its address is not a URL")
	}
	res, err := c.slow.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		res.Body.Close()
		return nil, &StatusError{req.URL.Redacted(), res.Status, res.StatusCode}
	}
	return res.Body, nil
}

// get fetches at most limit bytes. An error names the address without its password.
func (c *Client) get(ctx context.Context, address, accept string, limit int64) ([]byte, *http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, nil, errors.New("its address is not a URL")
	}
	req.Header.Set("Accept", accept)
	res, err := c.http.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	where := req.URL.Redacted()
	switch {
	case res.StatusCode == http.StatusNotFound || res.StatusCode == http.StatusGone:
		return nil, nil, fmt.Errorf("%s: %w", where, ErrNoProject)
	case res.StatusCode != http.StatusOK:
		return nil, nil, &StatusError{where, res.Status, res.StatusCode}
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, limit+1))
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", where, err)
	}
	if int64(len(text)) > limit {
		return nil, nil, fmt.Errorf("%s: its answer is larger than %d MiB", where, limit>>20)
	}
	return text, res, nil
}
