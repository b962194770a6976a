package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/dsbuild/dsbuild/internal/ui"
)

// maxAnswer is the size of the largest answer that is read from a server.
const maxAnswer = 32 << 20

// caller sends requests with the credentials of one place. It follows no redirects: they would
// take the credentials and the files to another server.
type caller struct {
	http   *http.Client
	header http.Header // of every request
}

func newCaller(transport http.RoundTripper) *caller {
	return &caller{
		&http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		http.Header{"User-Agent": {"dsbuild"}},
	}
}

// request is one request.
type request struct {
	method, address string
	kind            string    // of the body
	body            io.Reader // nil: none
	size            int64
}

// do sends a request and reads the answer into v, if v is not nil. An answer other than success
// is a *statusError.
func (c *caller) do(ctx context.Context, r request, v any) error {
	text, err := c.read(ctx, r)
	if err != nil || v == nil {
		return err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("%s %s: its answer is not the JSON that dsbuild expects: %w", r.method, r.address, err)
	}
	return nil
}

// read sends a request and returns the answer.
func (c *caller) read(ctx context.Context, r request) ([]byte, error) {
	res, err := c.send(ctx, r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", r.method, r.address, errors.Join(io.ErrUnexpectedEOF, err))
	}
	if len(text) > maxAnswer {
		return nil, fmt.Errorf("%s %s: its answer is longer than %d bytes", r.method, r.address, maxAnswer)
	}
	if res.StatusCode/100 != 2 {
		return nil, newStatusError(r, res, text)
	}
	return text, nil
}

func (c *caller) send(ctx context.Context, r request) (*http.Response, error) {
	body := r.body
	if body != nil {
		body = io.NopCloser(body) // the caller closes it
	}
	req, err := http.NewRequestWithContext(ctx, r.method, r.address, body)
	if err != nil {
		return nil, fmt.Errorf("%s: it is not the address of a server", withoutLogin(r.address))
	}
	req.Header = c.header.Clone()
	if r.body != nil {
		req.ContentLength = r.size
		req.Header.Set("Content-Type", r.kind)
	}
	return c.http.Do(req)
}

// newStatusError describes an answer that is no success.
func newStatusError(r request, res *http.Response, text []byte) *statusError {
	e := &statusError{where: r.method + " " + r.address, code: res.StatusCode, status: res.Status}
	var said struct {
		Message any                              `json:"message"`
		Errors  []struct{ Code, Message string } `json:"errors"`
	}
	switch to := res.Header.Get("Location"); {
	case res.StatusCode/100 == 3 && to != "":
		e.detail = "it moved to " + to
	case json.Unmarshal(text, &said) == nil && said.Message != nil:
		e.detail = fmt.Sprint(said.Message)
		for _, one := range said.Errors {
			e.detail += " " + one.Code + one.Message
		}
	case !strings.Contains(res.Header.Get("Content-Type"), "html"):
		e.detail = string(text)
	}
	e.detail = ui.Shorten(strings.Join(strings.Fields(e.detail), " "), 300)
	return e
}
