// Package httpclient is dsbuild's HTTP client. It holds the retry and timeout policy for every
// server: package indexes, downloads.
//
// A client, or a library's client, gets a Transport and disables its own retries. The Transport
//   - ends a request when the server receives and sends nothing for a minute, be it during the
//     connection, the TLS handshake, the upload of the body or the response; or when the response
//     arrives at less than 16 bytes per second;
//   - makes up to five attempts at a failed GET or HEAD, with increasing pauses, but only two if the
//     server is unresponsive;
//   - waits as long as Retry-After says, up to five minutes;
//   - sends no credentials to another server after a redirect, and follows no redirect from an
//     encrypted to an unencrypted URL.
//
// A Transport cannot retry an upload, or a request whose response broke off in the middle. A client
// makes these inside Transport.Try, which has the same policy; the Transport does not retry
// requests made there:
//
//	t := httpclient.New(site.Transport())
//	client := &http.Client{Transport: t}
//	err := t.Try(ctx, func(ctx context.Context, attempt int) error {
//		return download(ctx, client, address) // reads the answer to its end
//	})
package httpclient

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// Transport is an http.RoundTripper with the policy of the package.
type Transport struct {
	Base         http.RoundTripper                                // sends the requests
	StallTimeout time.Duration                                    // the longest time without a byte
	Pause        func(ctx context.Context, d time.Duration) error // waits
	Warn         func(format string, args ...any)                 // reports a long wait; may be nil

	mutex sync.Mutex
	waits map[string]time.Time // when a host wants the next request
}

// New returns a Transport that sends requests through base. If base is already a *Transport, New
// returns it, so that retries do not multiply.
func New(base http.RoundTripper) *Transport {
	if t, ok := base.(*Transport); ok {
		return t
	}
	return &Transport{Base: base, StallTimeout: time.Minute, Pause: pause, waits: map[string]time.Time{}}
}

// pause waits for a duration or the end of the context.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	isQuestion := (req.Method == http.MethodGet || req.Method == http.MethodHead) &&
		(req.Body == nil || req.Body == http.NoBody)
	if !isQuestion || req.Context().Value(insideTry{}) != nil {
		return t.send(req)
	}
	var res *http.Response
	err := t.Try(req.Context(), func(context.Context, int) (err error) {
		if res != nil {
			res.Body.Close()
		}
		res, err = t.send(req) //nolint:bodyclose // the next attempt or the caller closes it
		if err == nil && isTemporaryStatus(res.StatusCode) {
			err = &StatusError{Code: res.StatusCode}
		}
		return err
	})
	if err != nil && StatusOf(err) == 0 {
		if res != nil {
			res.Body.Close()
		}
		return nil, err
	}
	return res, nil // the client reads an error response, too
}

// send sends a request once.
func (t *Transport) send(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "http" && req.URL.Scheme != "https" {
		return nil, closeBody(req, Permanent(fmt.Errorf("unsupported URL %s", Redact(req.URL))))
	}
	req, err := guardRedirect(req)
	if err == nil {
		err = t.awaitTurn(req)
	}
	if err != nil {
		return nil, closeBody(req, err)
	}
	res, err := t.sendWatched(req)
	if err != nil {
		return nil, err
	}
	if after := res.Header.Get("Retry-After"); res.StatusCode >= http.StatusBadRequest && after != "" {
		until, err := http.ParseTime(after)
		if seconds, notANumber := strconv.ParseUint(after, 10, 31); notANumber == nil {
			until, err = time.Now().Add(time.Duration(seconds)*time.Second), nil
		}
		if err == nil {
			t.mutex.Lock()
			t.waits[req.URL.Host] = until
			t.mutex.Unlock()
		}
	}
	return res, nil
}

// closeBody closes the body of a request that is not sent, as a RoundTripper must.
func closeBody(req *http.Request, err error) error {
	if req.Body != nil {
		_ = req.Body.Close() // it was not read
	}
	return err
}

// guardRedirect rejects a redirect from https to http. It removes the credentials from a request to
// another server: net/http keeps them for a subdomain and for another port.
func guardRedirect(req *http.Request) (*http.Request, error) {
	first := req
	for first.Response != nil && first.Response.Request != nil {
		first = first.Response.Request
	}
	if first.URL.Scheme == req.URL.Scheme && first.URL.Host == req.URL.Host {
		return req, nil
	}
	if first.URL.Scheme == "https" && req.URL.Scheme != "https" {
		return req, Permanent(fmt.Errorf("insecure redirect to %s", Redact(req.URL)))
	}
	req = req.Clone(req.Context())
	for name := range req.Header {
		lower := strings.ToLower(name)
		if lower == "authorization" || lower == "cookie" ||
			strings.Contains(lower, "token") || strings.Contains(lower, "api-key") {
			req.Header.Del(name)
		}
	}
	return req, nil
}

// awaitTurn waits until the host wants the next request.
func (t *Transport) awaitTurn(req *http.Request) error {
	host := req.URL.Host
	t.mutex.Lock()
	wait := time.Until(t.waits[host])
	t.mutex.Unlock()
	if wait <= 0 {
		return nil
	}
	if wait > longestWait {
		err := fmt.Errorf("%s requested a wait of %s (Retry-After)", host, wait.Round(time.Second))
		return Permanent(fault.WithHint(err, "rerun the command later"))
	}
	if wait > noteworthyWait {
		t.warn("waiting %s, as requested by %s (Retry-After)", wait.Round(time.Second), host)
	}
	if err := t.Pause(req.Context(), wait); err != nil {
		return err
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	delete(t.waits, host)
	return nil
}

func (t *Transport) warn(format string, args ...any) {
	if t.Warn != nil {
		t.Warn(format, args...)
	}
}

// Redact returns a URL for a message. It hides the user name too, because that may be a token.
func Redact(at *url.URL) string {
	if at.User == nil {
		return at.String()
	}
	shown := *at
	shown.User = url.User("***")
	return strings.Replace(shown.String(), "%2A%2A%2A@", "***@", 1)
}
