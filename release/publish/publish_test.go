package publish_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/release/publish"
	"github.com/dsbuild/dsbuild/wheel"
)

func jsonOf(v any) ([]byte, error) { return json.Marshal(v) }

// same compares the files of a place with those that were published.
func same(t *testing.T, got, want map[string][]byte) {
	t.Helper()
	for name, data := range want {
		if !bytes.Equal(got[name], data) {
			t.Errorf("%s: %d bytes there, want %d", name, len(got[name]), len(data))
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s was published, too", name)
		}
	}
}

func TestEachPlace(t *testing.T) {
	wheels, files := built(t, "0.19.8", "0.19.7")
	for _, p := range places(t) {
		t.Run(p.name, func(t *testing.T) {
			want := p.expected(files)
			opt := p.options(t, wheels)
			opt.DryRun = true
			sum, err := publish.Run(t.Context(), opt)
			if n, _ := sum.Count(publish.Absent); err != nil || n != len(want) {
				t.Fatalf("dry run: %+v, %v", sum, err)
			}
			if there := p.files(t); len(there) > 0 {
				t.Fatalf("a dry run sent %d files", len(there))
			}
			opt.DryRun = false
			shown := &bar{}
			opt.Progress = shown.start
			sum, err = publish.Run(t.Context(), opt)
			if n, size := sum.Count(publish.Sent); err != nil || n != len(want) || shown.done != size || shown.total != size {
				t.Fatalf("%+v, %v; the bar shows %d of %d", sum, err, shown.done, shown.total)
			}
			same(t, p.files(t), want)
			before := 0
			if p.sent != nil {
				before = p.sent()
			}
			sum, err = publish.Run(t.Context(), opt)
			if n, _ := sum.Count(publish.Present); err != nil || n != len(want) {
				t.Errorf("again: %+v, %v", sum, err)
			}
			if p.sent != nil && p.sent() != before {
				t.Errorf("%d files were sent again", p.sent()-before)
			}
		})
	}
}

// A signature that comes later goes to the wheel that is there.
func TestAddsLater(t *testing.T) {
	for _, p := range places(t) {
		t.Run(p.name, func(t *testing.T) {
			wheels, files := built(t, "0.19.8")
			opt := p.options(t, wheels)
			late := wheels[0] + ".provenance.json.sig"
			if err := os.Remove(late); err != nil {
				t.Fatal(err)
			}
			if _, err := publish.Run(t.Context(), opt); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(late, files[filepath.Base(late)], 0o644); err != nil {
				t.Fatal(err)
			}
			sum, err := publish.Run(t.Context(), opt)
			if n, _ := sum.Count(publish.Sent); err != nil || p.beside && n != 1 || !p.beside && n != 0 {
				t.Errorf("%+v, %v", sum, err)
			}
			same(t, p.files(t), p.expected(files))
		})
	}
}

// Another file under the name of one stops the run before the first is sent.
func TestRefusesOtherBytes(t *testing.T) {
	wheels, files := built(t, "0.19.8", "0.19.7")
	taken := filepath.Base(wheels[1])
	for _, p := range places(t) {
		t.Run(p.name, func(t *testing.T) {
			if p.add == nil {
				t.Run("of the artifact", func(t *testing.T) { otherArtifact(t, p, wheels) })
				return
			}
			foreign := bytes.Clone(files[taken])
			foreign[len(foreign)-1] ^= 1
			p.add(taken, foreign)
			_, err := publish.Run(t.Context(), p.options(t, wheels))
			if names := takenNames(err); len(names) != 1 || names[0] != taken || fault.ExitCode(err) != 4 {
				t.Fatal(err)
			}
			there := p.files(t)
			if !bytes.Equal(there[taken], foreign) || len(there) > 1 {
				t.Errorf("%d files there", len(there))
			}
		})
	}
}

// takenNames returns the names that an error says to be taken.
func takenNames(err error) []string {
	if err == nil {
		return nil
	}
	_, names, taken := strings.Cut(err.Error(), "other files have these names there: ")
	if !taken {
		return nil
	}
	return strings.Split(names, "; ")
}

// otherArtifact publishes other wheels under the same names.
func otherArtifact(t *testing.T, p place, wheels []string) {
	dir := t.TempDir()
	twin := filepath.Join(dir, filepath.Base(wheels[1]))
	data, err := os.ReadFile(wheels[1])
	if err == nil {
		err = os.WriteFile(twin, data, 0o644)
	}
	if err == nil {
		err = os.WriteFile(twin+".provenance.json.sig", []byte("another signature"), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := publish.Run(t.Context(), p.options(t, []string{twin})); err != nil {
		t.Fatal(err)
	}
	before := p.files(t)
	_, err = publish.Run(t.Context(), p.options(t, wheels))
	if names := takenNames(err); len(names) != 1 || !strings.HasSuffix(names[0], ".sig") {
		t.Error(err)
	}
	same(t, p.files(t), before)
}

// A run that is cut off anywhere leaves whole files, and the next one sends the others.
func TestCutOff(t *testing.T) {
	rounds := 50
	if testing.Short() {
		rounds = 8
	}
	wheels, files := built(t, "0.19.8", "0.19.7", "0.19.6")
	for _, p := range places(t) {
		t.Run(p.name, func(t *testing.T) {
			want := p.expected(files)
			random := rand.New(rand.NewPCG(30, 2))
			effort := p.effort(t, wheels)
			whole, cut := 0, 0
			for range rounds {
				opt := p.options(t, wheels)
				ctx, stop := context.WithCancelCause(t.Context())
				limit := &cutter{base: http.DefaultTransport, cut: func() { stop(errCut) }}
				limit.left.Store(random.Int64N(effort * 5 / 4))
				if opt.Transport = atOnce(limit); p.wrap == nil { // a folder: after a time
					time.AfterFunc(time.Duration(limit.left.Load()), limit.cut)
				}
				_, err := publish.Run(ctx, opt)
				stop(nil)
				there := p.files(t)
				names := takenNames(err)
				switch {
				case err == nil:
					same(t, there, want)
					p.clear()
					whole++
				case p.torn && names != nil:
					if bytes.Equal(there[names[0]], want[names[0]]) {
						t.Fatalf("%v, but the file is whole", err)
					}
					p.clear() // as the hint says
				case !errors.Is(err, errCut):
					t.Fatal(err)
				default:
					cut++
					for name, data := range there {
						if !p.torn && !bytes.Equal(data, want[name]) {
							t.Fatalf("%s has %d bytes of %d", name, len(data), len(want[name]))
						}
					}
				}
			}
			if !testing.Short() && (whole == 0 || cut == 0) {
				t.Errorf("%d runs got to the end, %d were cut off: the limits prove nothing", whole, cut)
			}
			_, err := publish.Run(t.Context(), p.options(t, wheels))
			for p.torn && takenNames(err) != nil {
				time.Sleep(100 * time.Millisecond) // the server may still store an upload that was cut off
				p.clear()
				_, err = publish.Run(t.Context(), p.options(t, wheels))
			}
			if err != nil {
				t.Fatal(err)
			}
			same(t, p.files(t), want)
		})
	}
}

// Servers that fail now and then are asked again, and what arrived unheard is not sent twice.
func TestBrokenConnections(t *testing.T) {
	wheels, files := built(t, "0.19.8", "0.19.7")
	for _, p := range places(t) {
		if p.wrap == nil {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			opt := p.options(t, wheels)
			opt.Transport = atOnce(&flaky{random: rand.New(rand.NewPCG(7, 1))})
			opt.Parallel = 1
			var err error
			for range 10 { // five attempts may all fail
				if _, err = publish.Run(t.Context(), opt); err == nil {
					break
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			same(t, p.files(t), p.expected(files))
			if n := len(p.expected(files)); p.sent != nil && p.sent() != n {
				t.Errorf("%d uploads of %d files", p.sent(), n)
			}
		})
	}
}

// flaky loses three in sixteen requests, or their answers, or half of an answer.
type flaky struct{ random *rand.Rand }

func (f *flaky) RoundTrip(r *http.Request) (*http.Response, error) {
	switch f.random.IntN(16) {
	case 0:
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, errors.New("connection reset before the request")
	case 1:
		res, err := http.DefaultTransport.RoundTrip(r)
		if err == nil {
			res.Body.Close()
		}
		return nil, errors.Join(err, errors.New("connection reset before the answer"))
	case 2:
		res, err := http.DefaultTransport.RoundTrip(r)
		if err == nil {
			res.Body = &halfBody{res.Body, res.ContentLength / 2}
		}
		return res, err
	}
	return http.DefaultTransport.RoundTrip(r)
}

// halfBody breaks after some bytes.
type halfBody struct {
	io.ReadCloser
	left int64
}

func (b *halfBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errors.New("connection reset in the answer")
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// A server that accepts a connection and never answers ends the run, which says so.
func TestSilentServer(t *testing.T) {
	wheels, _ := built(t, "0.19.8")
	for _, p := range places(t) {
		if p.wrap == nil {
			continue
		}
		ended := make(chan struct{})
		p.wrap(func(http.Handler) http.Handler {
			return http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-ended })
		})
		opt := p.options(t, wheels)
		impatient := atOnce(http.DefaultTransport)
		impatient.Silence = 200 * time.Millisecond
		var warned atomic.Int64
		opt.Transport, opt.Warn = impatient, func(string, ...any) { warned.Add(1) }
		start := time.Now()
		_, err := publish.Run(t.Context(), opt)
		close(ended)
		if err == nil || !strings.HasPrefix(err.Error(), "publishing to "+p.to+": ") || !strings.Contains(err.Error(), "has been silent for 200ms") {
			t.Errorf("%s: %v, want an error that says that the server is silent", p.name, err)
		}
		if took := time.Since(start); warned.Load() == 0 || took > 10*time.Second {
			t.Errorf("%s: %d warnings in %s, want one soon", p.name, warned.Load(), took)
		}
	}
}

// Each answer of a server that is no success ends in an error that says so, and contains no secret.
func TestAnswers(t *testing.T) {
	wheels, _ := built(t, "0.19.8")
	for _, p := range places(t) {
		if p.wrap == nil {
			continue
		}
		for _, code := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable} {
			t.Run(p.name+" "+http.StatusText(code), func(t *testing.T) {
				var asked atomic.Int64
				p.wrap(func(http.Handler) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						asked.Add(1)
						for _, secret := range r.Header {
							w.Header().Add("X-Echo", secret[0])
						}
						w.WriteHeader(code)
						for _, value := range p.env { // a careless server
							_, _ = w.Write([]byte(value + " "))
						}
					})
				})
				defer p.wrap(func(h http.Handler) http.Handler { return h })
				_, err := publish.Run(t.Context(), p.options(t, wheels))
				if err == nil || !strings.Contains(err.Error(), http.StatusText(code)) && !strings.Contains(err.Error(), itoa(code)) {
					t.Fatal(err)
				}
				for name, value := range p.env {
					secret := strings.Contains(name, "TOKEN") || strings.Contains(name, "SECRET") || strings.Contains(name, "PASSWORD")
					if secret && strings.Contains(err.Error(), value) {
						t.Errorf("the error has %s in it: %v", name, err)
					}
				}
				again := code == http.StatusTooManyRequests || code >= 500
				if n := asked.Load(); again && n < 5 || !again && n > 2 {
					t.Errorf("%d requests", n)
				}
				if !again && !strings.Contains(fault.Hint(err), "dsbuild takes") {
					t.Errorf("hint %q of %v", fault.Hint(err), err)
				}
			})
		}
	}
}

func itoa(n int) string { text, _ := json.Marshal(n); return string(text) }

// Retry-After is honoured; a wait that is too long ends the run.
func TestRetryAfter(t *testing.T) {
	wheels, files := built(t, "0.19.8")
	for _, p := range places(t) {
		if p.wrap == nil {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			var asked atomic.Int64
			wait := "17"
			p.wrap(func(h http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if asked.Add(1) == 2 || wait != "17" {
						w.Header().Set("Retry-After", wait)
						w.WriteHeader(http.StatusTooManyRequests)
						return
					}
					h.ServeHTTP(w, r)
				})
			})
			opt := p.options(t, wheels)
			var waited atomic.Bool
			patient := atOnce(http.DefaultTransport)
			patient.Pause = func(_ context.Context, d time.Duration) error {
				if d > 16*time.Second && d <= 17*time.Second {
					waited.Store(true)
				}
				return nil
			}
			opt.Transport = patient
			if _, err := publish.Run(t.Context(), opt); err != nil || !waited.Load() {
				t.Fatalf("%v; waited: %t", err, waited.Load())
			}
			same(t, p.files(t), p.expected(files))
			wait = "86400"
			before := asked.Load()
			if _, err := publish.Run(t.Context(), opt); err == nil || !strings.Contains(err.Error(), "asks to wait 24h0m0s") || asked.Load() > before+2 {
				t.Errorf("%v after %d requests", err, asked.Load()-before)
			}
		})
	}
}

// Nothing is sent if one of the wheels is damaged, and a wheel that changes is not sent whole.
func TestWheels(t *testing.T) {
	wheels, _ := built(t, "0.19.8", "0.19.7")
	torn := filepath.Join(t.TempDir(), filepath.Base(wheels[1]))
	data, err := os.ReadFile(wheels[1])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(torn, data[:len(data)/2], 0o644); err != nil {
		t.Fatal(err)
	}
	p := folderPlace(t)
	if _, err := publish.Run(t.Context(), p.options(t, []string{wheels[0], torn})); fault.ExitCode(err) != fault.Wheel {
		t.Error(err)
	}
	linked := filepath.Join(t.TempDir(), filepath.Base(wheels[0]))
	if err := os.Symlink(wheels[0], linked); err != nil {
		t.Fatal(err)
	}
	link := new(wheel.LinkError)
	if _, err := publish.Run(t.Context(), p.options(t, []string{linked})); !errors.As(err, &link) {
		t.Error(err)
	}
	if there := p.files(t); len(there) > 0 {
		t.Errorf("%d files were published", len(there))
	}
	for _, p := range []place{folderPlace(t), bucketPlace(t)} {
		opt := p.options(t, wheels[:1])
		opt.Progress = func(int64) publish.Progress { // all is verified; now the wheel changes
			changed := bytes.Clone(data)
			if err := os.WriteFile(wheels[0], append(changed[:len(changed)-1], changed[len(changed)-1]^1), 0o644); err != nil {
				t.Error(err)
			}
			return &bar{}
		}
		_, err := publish.Run(t.Context(), opt)
		if err == nil || !strings.Contains(err.Error(), "changed while dsbuild published it") {
			t.Errorf("%s: %v", p.name, err)
		}
		if _, there := p.files(t)[filepath.Base(wheels[0])]; there {
			t.Errorf("%s: the changed wheel is there", p.name)
		}
		wheels, _ = built(t, "0.19.8", "0.19.7")
	}
}

// A folder that cannot be written is an error at once: another attempt would not help.
func TestFolderThatFails(t *testing.T) {
	wheels, _ := built(t, "0.19.8")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	opt := place{to: file + "/below"}.options(t, wheels)
	again := atOnce(http.DefaultTransport)
	again.Pause = func(context.Context, time.Duration) error {
		t.Error("it was tried again")
		return nil
	}
	opt.Transport = again
	if _, err := publish.Run(t.Context(), opt); err == nil {
		t.Error("a folder below a file was made")
	}
}

// A place that cannot be reached is named as the user named it.
func TestUnreachable(t *testing.T) {
	wheels, _ := built(t, "0.19.8")
	for _, p := range places(t) {
		if p.wrap == nil {
			continue
		}
		opt := p.options(t, wheels)
		opt.Transport = atOnce(&http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("no route to host")}
		}})
		_, err := publish.Run(t.Context(), opt)
		if err == nil || !strings.HasPrefix(err.Error(), "publishing to "+p.to+": ") || !strings.Contains(fault.Hint(err), "HTTPS_PROXY") {
			t.Errorf("%s: %v; hint: %s", p.name, err, fault.Hint(err))
		}
	}
}

func TestCancelled(t *testing.T) {
	wheels, _ := built(t, "0.19.8")
	ctx, stop := context.WithCancelCause(t.Context())
	stop(errCut)
	for _, p := range places(t) {
		if _, err := publish.Run(ctx, p.options(t, wheels)); !errors.Is(err, errCut) {
			t.Errorf("%s: %v", p.name, err)
		}
	}
}

// A file that somebody else adds after dsbuild has looked stays: the store gets the condition.
func TestAddedMeanwhile(t *testing.T) {
	wheels, files := built(t, "0.19.8")
	name := filepath.Base(wheels[0])
	foreign := bytes.Clone(files[name])
	foreign[len(foreign)-1] ^= 1
	bucket, condition := bucketPlace(t), ""
	bucket.wrap(func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, name) {
				condition = r.Header.Get("If-None-Match")
				bucket.add(name, foreign)
				w.WriteHeader(http.StatusPreconditionFailed)
				_, _ = w.Write([]byte("<Error><Code>PreconditionFailed</Code></Error>"))
				return
			}
			h.ServeHTTP(w, r)
		})
	})
	_, err := publish.Run(t.Context(), bucket.options(t, wheels))
	if names := takenNames(err); len(names) != 1 || names[0] != name || condition != "*" {
		t.Errorf("%v, the condition is %q", err, condition)
	}
	if !bytes.Equal(bucket.files(t)[name], foreign) {
		t.Error("the other file is gone")
	}
}
