package httpclient_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/httpclient"
)

// fast returns a transport that does not wait between tries.
func fast() *httpclient.Transport {
	t := httpclient.New(&http.Transport{})
	t.Pause = func(ctx context.Context, _ time.Duration) error { return context.Cause(ctx) }
	return t
}

func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL
}

// listen starts a server of TCP. It gives each connection to handle, and closes it afterwards.
func listen(t *testing.T, handle func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); handle(c) }()
		}
	}()
	return l.Addr().String()
}

// get asks for an address and reads the whole answer.
func get(t *testing.T, transport http.RoundTripper, address string) (*http.Response, []byte, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return res, text, err
}

// A question is asked five times, unless the answer says that asking again is useless.
func TestQuestionsAreRepeated(t *testing.T) {
	for code, want := range map[int]int32{200: 1, 404: 1, 401: 1, 501: 1, 408: 5, 429: 5, 500: 5, 503: 5} {
		var asked atomic.Int32
		address := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			asked.Add(1)
			w.WriteHeader(code)
			fmt.Fprint(w, "said")
		})
		res, text, err := get(t, fast(), address)
		if err != nil || res.StatusCode != code || string(text) != "said" || asked.Load() != want {
			t.Errorf("%d: asked %d times, want %d; the last answer is %q, %v", code, asked.Load(), want, text, err)
		}
	}
	var asked atomic.Int32
	flaky := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch asked.Add(1) {
		case 1:
			c, _, _ := http.NewResponseController(w).Hijack()
			c.Close()
		case 2:
			w.WriteHeader(http.StatusBadGateway)
		default:
			fmt.Fprint(w, "at last")
		}
	})
	if _, text, err := get(t, fast(), flaky); err != nil || string(text) != "at last" {
		t.Errorf("after a lost connection and a 502: %q, %v, want the third answer", text, err)
	}
}

// What may have had an effect is not sent again by the transport, and Try does not multiply tries.
func TestUploadsAreNotRepeated(t *testing.T) {
	var asked atomic.Int32
	address := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	transport := fast()
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPut, address, strings.NewReader("body"))
	res, err := transport.RoundTrip(req)
	if err != nil || res.StatusCode != http.StatusServiceUnavailable || asked.Load() != 1 {
		t.Fatalf("%d requests, %v, want one", asked.Load(), err)
	}
	res.Body.Close()
	asked.Store(0)
	err = transport.Try(t.Context(), func(ctx context.Context, _ int) error {
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		res, err := transport.RoundTrip(req)
		if err != nil {
			return err
		}
		res.Body.Close()
		return &httpclient.StatusError{Code: res.StatusCode}
	})
	if httpclient.StatusOf(err) != http.StatusServiceUnavailable || asked.Load() != 5 {
		t.Errorf("Try: %d requests, %v, want five", asked.Load(), err)
	}
}

// A server that is silent at any point of a request ends it, after one more try.
func TestSilentServers(t *testing.T) {
	wait := func(net.Conn) { <-t.Context().Done() }
	beginning := func(text string) func(net.Conn) {
		return func(c net.Conn) {
			_, _ = c.Read(make([]byte, 4096))
			_, _ = io.WriteString(c, text)
			wait(c)
		}
	}
	for name, c := range map[string]struct {
		scheme, method string
		handle         func(net.Conn)
	}{
		"TLS handshake":   {"https", http.MethodGet, wait},
		"no answer":       {"http", http.MethodGet, wait},
		"half a header":   {"http", http.MethodGet, beginning("HTTP/1.1 200 OK\r\nConte")},
		"half an answer":  {"http", http.MethodGet, beginning("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegin")},
		"a body not read": {"http", http.MethodPut, wait},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var accepted atomic.Int32
			address := c.scheme + "://" + listen(t, func(conn net.Conn) { accepted.Add(1); c.handle(conn) })
			transport := fast()
			transport.StallTimeout = time.Second
			var warned atomic.Int32
			transport.Warn = func(string, ...any) { warned.Add(1) }
			client := &http.Client{Transport: transport}
			err := transport.Try(t.Context(), func(ctx context.Context, _ int) error {
				var body io.Reader
				if c.method == http.MethodPut {
					body = bytes.NewReader(make([]byte, 64<<20)) // more than the kernel buffers
				}
				req, err := http.NewRequestWithContext(ctx, c.method, address, body)
				if err != nil {
					return err
				}
				res, err := client.Do(req)
				if err != nil {
					return err
				}
				defer res.Body.Close()
				_, err = io.Copy(io.Discard, res.Body)
				return err
			})
			if err == nil || !strings.Contains(err.Error(), "no data from "+strings.TrimPrefix(address, c.scheme+"://")+" for 1s") || !strings.Contains(fault.Hint(err), "firewall") {
				t.Errorf("error %v, want one that says that the server is silent", err)
			}
			if accepted.Load() != 2 || warned.Load() != 1 {
				t.Errorf("%d tries and %d warnings, want 2 and 1", accepted.Load(), warned.Load())
			}
		})
	}
}

// A server that sends a byte now and then is as good as silent.
func TestTricklingServer(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	address := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		for r.Context().Err() == nil {
			fmt.Fprint(w, ".")
			_ = http.NewResponseController(w).Flush()
			time.Sleep(200 * time.Millisecond)
		}
	})
	transport := fast()
	transport.StallTimeout = time.Second
	err := transport.Try(t.Context(), func(ctx context.Context, _ int) error {
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		res, err := (&http.Client{Transport: transport}).Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		_, err = io.Copy(io.Discard, res.Body)
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "only ") || !strings.Contains(err.Error(), " in 1s") || fault.Hint(err) == "" || asked.Load() != 2 {
		t.Errorf("%v after %d requests, want an error about the rate after two", err, asked.Load())
	}
}

// A slow server that goes on is not silent, and neither is a client that reads slowly.
func TestSlowIsNotSilent(t *testing.T) {
	t.Parallel()
	address := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		for range 10 {
			fmt.Fprint(w, "piece ")
			_ = http.NewResponseController(w).Flush()
			time.Sleep(250 * time.Millisecond)
		}
	})
	transport := fast()
	transport.StallTimeout = 2 * time.Second
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	res, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	time.Sleep(3 * time.Second)
	if text, err := io.ReadAll(res.Body); err != nil || len(text) != 60 {
		t.Errorf("%q, %v, want ten pieces", text, err)
	}
}

func TestRetryAfter(t *testing.T) {
	after := "17"
	var asked atomic.Int32
	address := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) == 1 || after != "17" {
			w.Header().Set("Retry-After", after)
			w.WriteHeader(http.StatusTooManyRequests)
		}
	})
	transport := fast()
	var longest time.Duration
	transport.Pause = func(_ context.Context, d time.Duration) error { longest = max(longest, d); return nil }
	if _, _, err := get(t, transport, address); err != nil || longest <= 16*time.Second || longest > 17*time.Second {
		t.Errorf("waited %s, %v, want 17 s", longest, err)
	}
	after = time.Now().Add(24 * time.Hour).UTC().Format(http.TimeFormat)
	before := asked.Load()
	if _, _, err := get(t, transport, address); err == nil || !strings.Contains(err.Error(), "requested a wait of 2") || asked.Load() != before+1 {
		t.Errorf("%d more requests, error %v, want one request and the wait", asked.Load()-before, err)
	}
}

// Credentials do not follow a redirect to another host, port or scheme; they stay on the same one.
func TestCredentialsStay(t *testing.T) {
	told := map[string]string{}
	note := func(w http.ResponseWriter, r *http.Request) {
		for _, name := range []string{"Authorization", "Private-Token", "X-Amz-Security-Token", "X-Api-Key", "Cookie"} {
			told[name] = r.Header.Get(name)
		}
	}
	other := serve(t, note)
	to := ""
	mux := http.NewServeMux()
	mux.HandleFunc("/start", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, http.StatusFound) })
	mux.HandleFunc("/end", note)
	address := serve(t, mux.ServeHTTP)
	for target, kept := range map[string]bool{"/end": true, other + "/end": false} {
		to = target
		clear(told)
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, address+"/start", nil)
		for _, name := range []string{"Authorization", "Private-Token", "X-Amz-Security-Token", "X-Api-Key", "Cookie"} {
			req.Header.Set(name, "secret")
		}
		res, err := (&http.Client{Transport: fast()}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		for name, value := range told {
			if (value == "secret") != kept {
				t.Errorf("redirected to %s: it was told %s %q, want it told: %t", target, name, value, kept)
			}
		}
		if len(told) != 5 {
			t.Errorf("redirected to %s: nothing arrived", target)
		}
	}
	secure := httptest.NewTLSServer(http.RedirectHandler(other, http.StatusFound))
	t.Cleanup(secure.Close)
	transport := fast()
	transport.Base = secure.Client().Transport
	if _, _, err := get(t, transport, secure.URL); err == nil || !strings.Contains(err.Error(), "insecure redirect to http://") {
		t.Errorf("a redirect from https to http: %v, want a refusal", err)
	}
}

// What another try would only repeat is not tried again.
func TestPermanentErrors(t *testing.T) {
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(secure.Close)
	secure.Config.ErrorLog = nil
	for _, address := range []string{secure.URL, "ftp://127.0.0.1/x"} {
		transport := fast()
		transport.Pause = func(context.Context, time.Duration) error {
			t.Errorf("%s was tried again", address)
			return errors.New("tried again")
		}
		if _, _, err := get(t, transport, address); err == nil {
			t.Errorf("%s: no error", address)
		}
	}
}

func TestRedact(t *testing.T) {
	for text, want := range map[string]string{
		"https://host/a?b":         "https://host/a?b",
		"https://token@host/a%2Bb": "https://***@host/a%2Bb",
		"https://me:secret@host/":  "https://***@host/",
	} {
		at, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := httpclient.Redact(at); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}
