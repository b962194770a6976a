package httpclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// slowest is the minimum rate of a response body in bytes per second. A slower server would keep a client waiting for
// hours without ever being silent.
const slowest = 16

// silenceError is the error of a server that received and sent too little for too long.
type silenceError struct {
	host  string
	limit time.Duration
	sent  int
}

func (e *silenceError) Error() string {
	if e.sent > 0 {
		return fmt.Sprintf("only %d bytes from %s in %s", e.sent, e.host, e.limit)
	}
	return fmt.Sprintf("no data from %s for %s", e.host, e.limit)
}

// Hint suggests the next step.
func (e *silenceError) Hint() string {
	return "check the server, its proxy and firewall, then rerun the command"
}

// watch ends a request when no byte moves for a time.
type watch struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	limit  time.Duration
}

// sendWatched sends a request and watches the bodies of request and response.
func (t *Transport) sendWatched(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	w := &watch{ctx: ctx, cancel: cancel, limit: t.StallTimeout}
	silent := &silenceError{host: req.URL.Host, limit: t.StallTimeout}
	w.timer = time.AfterFunc(t.StallTimeout, func() { cancel(silent) })
	req = req.Clone(ctx)
	if req.Body != nil && req.Body != http.NoBody {
		req.Body = &sentBody{req.Body, w}
		req.GetBody = nil // its bodies would not be watched
	}
	res, err := t.Base.RoundTrip(req)
	w.timer.Stop()
	if err != nil {
		err = w.explain(err)
		cancel(nil)
		return nil, err
	}
	res.Body = &receivedBody{ReadCloser: res.Body, watch: w, host: req.URL.Host}
	return res, nil
}

// explain returns the error of a request, with the reason if the watch ended it.
func (w *watch) explain(err error) error {
	if silent := new(silenceError); errors.As(context.Cause(w.ctx), &silent) {
		return silent
	}
	return &brokenError{err}
}

// sentBody is the body of a request. The server must read each piece within the limit.
type sentBody struct {
	io.ReadCloser
	watch *watch
}

func (b *sentBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.watch.timer.Reset(b.watch.limit)
	return n, err
}

// receivedBody is the body of a response. The limit applies only while the client waits for it.
type receivedBody struct {
	io.ReadCloser
	watch *watch
	host  string

	waited time.Duration // since waited last exceeded the limit
	sent   int           // bytes since then
}

func (b *receivedBody) Read(p []byte) (int, error) {
	b.watch.timer.Reset(b.watch.limit)
	began := time.Now()
	n, err := b.ReadCloser.Read(p)
	b.watch.timer.Stop()
	b.waited += time.Since(began)
	b.sent += n
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		err = b.watch.explain(err)
	case err == nil && b.waited > b.watch.limit:
		if float64(b.sent) < slowest*b.waited.Seconds() {
			err = &silenceError{b.host, b.waited.Round(time.Second), b.sent}
		}
		b.waited, b.sent = 0, 0
	}
	return n, err
}

// Close closes the body and ends the request.
func (b *receivedBody) Close() error {
	err := b.ReadCloser.Close()
	b.watch.timer.Stop()
	b.watch.cancel(nil)
	return err
}
