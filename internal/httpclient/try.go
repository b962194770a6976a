package httpclient

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"time"
)

// The retry policy.
const (
	maxTries       = 5
	maxSilent      = 2 // tries of a server that says nothing
	firstWait      = 500 * time.Millisecond
	longestWait    = 5 * time.Minute // a server that asks for more is an error
	noteworthyWait = 5 * time.Second // the user is told of longer ones
)

// insideTry marks the context of requests that Try repeats.
type insideTry struct{}

// Try calls do until it succeeds, fails permanently, or has failed too often. do must use its context
// for its requests. attempt counts from 0.
func (t *Transport) Try(ctx context.Context, do func(ctx context.Context, attempt int) error) error {
	inside := context.WithValue(ctx, insideTry{}, true)
	for attempt, silent := 0, 0; ; attempt++ {
		err := do(inside, attempt)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		quiet := new(silenceError)
		if errors.As(err, &quiet) {
			silent++
		}
		if err == nil || attempt+1 == maxTries || silent == maxSilent || !isTemporary(err) {
			return err
		}
		if silent > 0 {
			t.warn("%v; retrying", quiet)
		}
		wait := firstWait << attempt
		if err := t.Pause(ctx, wait/2+rand.N(wait)); err != nil {
			return err
		}
	}
}

// isTemporary reports whether a retry may succeed.
func isTemporary(err error) bool {
	if permanent := new(permanentError); errors.As(err, &permanent) {
		return false
	}
	if code := StatusOf(err); code != 0 {
		return isTemporaryStatus(code)
	}
	if name := new(net.DNSError); errors.As(err, &name) && name.IsNotFound {
		return false
	}
	if foreign := new(tls.CertificateVerificationError); errors.As(err, &foreign) {
		return false
	}
	return connectionFailed(err)
}

// connectionFailed reports whether the connection could not be opened, or broke.
func connectionFailed(err error) bool {
	broken, quiet := new(brokenError), new(silenceError)
	return errors.As(err, &broken) || errors.As(err, &quiet) || errors.Is(err, io.ErrUnexpectedEOF)
}

func isTemporaryStatus(code int) bool {
	switch code {
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	case http.StatusNotImplemented:
		return false
	}
	return code >= http.StatusInternalServerError
}

// brokenError is the error of a connection that failed or broke.
type brokenError struct{ error }

func (e *brokenError) Unwrap() error { return e.error }

// permanentError is an error that a retry cannot help.
type permanentError struct{ error }

func (e *permanentError) Unwrap() error { return e.error }

// Permanent marks an error that Try does not retry.
func Permanent(err error) error { return &permanentError{err} }

// StatusError is an unsuccessful response of a server.
type StatusError struct {
	Where  string // the URL, without its credentials
	Status string // such as 404 Not Found
	Code   int
	Detail string // the server's explanation; optional
}

func (e *StatusError) Error() string {
	text := e.Where + ": server returned " + e.Status
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	return text
}

// StatusOf returns the HTTP status of err, or 0 if the server did not respond.
func StatusOf(err error) int {
	if ours := new(StatusError); errors.As(err, &ours) {
		return ours.Code
	}
	return 0
}
