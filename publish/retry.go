package publish

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/minio/minio-go/v7"

	"github.com/dsbuild/dsbuild/internal/pyindex"
)

const (
	maxAttempts = 5
	firstWait   = 500 * time.Millisecond // doubles with each attempt
	maxWait     = 5 * time.Minute        // a server that asks for more is an error
)

// pause waits for a time or the end of the run.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// retry calls do until it succeeds, fails for good, or failed too often.
func (r *run) retry(ctx context.Context, do func(attempt int) error) error {
	for attempt := 0; ; attempt++ {
		err := do(attempt)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil || attempt+1 == maxAttempts || !isTemporary(err) {
			return err
		}
		wait := firstWait << attempt
		if err := r.Pause(ctx, wait/2+rand.N(wait)); err != nil {
			return err
		}
	}
}

// statusError is an answer of a server that refuses a request.
type statusError struct {
	where  string // method and address
	code   int
	status string
	detail string // of its body
}

func (e *statusError) Error() string {
	text := fmt.Sprintf("%s: it answers %s", e.where, e.status)
	if e.detail != "" {
		text += ": " + e.detail
	}
	return text
}

// statusOf returns the status of the answer behind an error, 0 if there was none.
func statusOf(err error) int {
	if mine := new(statusError); errors.As(err, &mine) {
		return mine.code
	}
	if list := new(pyindex.StatusError); errors.As(err, &list) {
		return list.Code
	}
	if registry := new(transport.Error); errors.As(err, &registry) {
		return registry.StatusCode
	}
	if store := (minio.ErrorResponse{}); errors.As(err, &store) {
		return store.StatusCode
	}
	return 0
}

// isTemporary reports whether another attempt may succeed.
func isTemporary(err error) bool {
	if busy := new(busyError); errors.As(err, &busy) {
		return false
	}
	if changed := new(changedError); errors.As(err, &changed) {
		return false
	}
	switch code := statusOf(err); {
	case code == http.StatusRequestTimeout, code == http.StatusTooManyRequests:
		return true
	case code == http.StatusNotImplemented:
		return false
	case code != 0:
		return code >= http.StatusInternalServerError
	}
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	if errors.As(err, &unknown) || errors.As(err, &name) {
		return false
	}
	broken := new(url.Error)
	lost := new(net.OpError) // while an answer is read
	return errors.As(err, &broken) || errors.As(err, &lost) || errors.Is(err, io.ErrUnexpectedEOF)
}

// busyError is a server that asks for a longer wait than maxWait.
type busyError struct {
	host string
	wait time.Duration
}

func (e *busyError) Error() string {
	return fmt.Sprintf("%s asks to wait %s before the next request", e.host, e.wait.Round(time.Second))
}

// Hint suggests the next step.
func (e *busyError) Hint() string {
	return "run the same command again later: it sends only the missing files"
}

// patientTransport honours Retry-After: after such an answer it sends the next request to this
// host when the time has passed.
type patientTransport struct {
	base  http.RoundTripper
	pause func(ctx context.Context, d time.Duration) error

	mutex sync.Mutex
	waits map[string]time.Time // by host
}

// RoundTrip implements http.RoundTripper.
func (t *patientTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if wait := t.waitFor(req.URL.Host); wait > maxWait {
		return nil, closeBody(req, &busyError{req.URL.Host, wait})
	} else if wait > 0 {
		if err := t.pause(req.Context(), wait); err != nil {
			return nil, closeBody(req, err)
		}
		t.setWait(req.URL.Host, time.Time{})
	}
	res, err := t.base.RoundTrip(req)
	if err == nil && res.StatusCode >= http.StatusBadRequest {
		if after, ok := parseRetryAfter(res.Header.Get("Retry-After"), time.Now()); ok {
			t.setWait(req.URL.Host, time.Now().Add(after))
		}
	}
	return res, err
}

// closeBody closes the body of a request that is not sent, as a RoundTripper must.
func closeBody(req *http.Request, err error) error {
	if req.Body != nil {
		_ = req.Body.Close() // it was not read
	}
	return err
}

func (t *patientTransport) waitFor(host string) time.Duration {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return time.Until(t.waits[host])
}

func (t *patientTransport) setWait(host string, until time.Time) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.waits == nil {
		t.waits = map[string]time.Time{}
	}
	t.waits[host] = until
}

// parseRetryAfter reads a number of seconds or a date.
func parseRetryAfter(text string, now time.Time) (time.Duration, bool) {
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second, true
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(0, at.Sub(now)), true
	}
	return 0, false
}
