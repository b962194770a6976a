package image

import (
	"io"
	"net/http"
	"sync/atomic"
)

// traffic counts the bytes of requests and answers.
type traffic struct {
	next           http.RoundTripper
	received, sent atomic.Int64
}

// RoundTrip sends a request.
func (t *traffic) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		counted := *r
		counted.Body = &countedBody{r.Body, &t.sent}
		r = &counted
	}
	answer, err := t.next.RoundTrip(r)
	if err == nil {
		answer.Body = &countedBody{answer.Body, &t.received}
	}
	return answer, err
}

// countedBody counts the bytes that are read from it.
type countedBody struct {
	io.ReadCloser
	n *atomic.Int64
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n.Add(int64(n))
	return n, err
}
