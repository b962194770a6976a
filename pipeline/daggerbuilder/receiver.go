package daggerbuilder

import (
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode"

	collogs "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/proto"

	"github.com/dsbuild/dsbuild/internal/ui"
)

// maxBody bounds one message of the engine, maxLine a line of its programs, and maxStreams how many lines are unfinished.
const (
	maxBody    = 16 << 20
	maxLine    = 64 << 10
	maxStreams = 1000
)

// tokenHeader is the header of a request that proves that it comes from this process's client or its engine: every user
// of the machine can connect to the receiver.
const tokenHeader = "x-dsbuild-token"

// receiver is a small OTLP/HTTP server on loopback. An engine reports its programs and their
// output to it while it works.
type receiver struct {
	server *http.Server
	url    string
	token  string

	mu    sync.Mutex
	step  ui.Step
	log   io.Writer
	rest  map[string]string // unfinished lines by span and stream
	heard bool              // whether the engine reports at all
	seen  map[string]bool   // spans of execs that ran, of all steps
	ran   int               // how many of them in this step
}

func newReceiver() (*receiver, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("step receiver: %w", err)
	}
	r := &receiver{seen: map[string]bool{}, url: "http://" + listener.Addr().String(), token: rand.Text()}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/traces", func(w http.ResponseWriter, q *http.Request) {
		var m coltrace.ExportTraceServiceRequest
		if decodeRequest(w, q, &m) {
			r.handleSpans(&m)
		}
	})
	mux.HandleFunc("POST /v1/metrics", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /v1/logs", func(w http.ResponseWriter, q *http.Request) {
		var m collogs.ExportLogsServiceRequest
		if decodeRequest(w, q, &m) {
			r.passLines(&m)
		}
	})
	r.server = &http.Server{Handler: r.authorized(mux), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = r.server.Serve(listener) }() // ends with close
	return r, nil
}

// authorized passes only requests with the token on to next.
func (r *receiver) authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if subtle.ConstantTimeCompare([]byte(q.Header.Get(tokenHeader)), []byte(r.token)) != 1 {
			http.Error(w, "unauthorized", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, q)
	})
}

// environment returns the variables that make the Dagger client report to this receiver only.
// They override those of the user's own environment.
func (r *receiver) environment() [][2]string {
	headers := tokenHeader + "=" + r.token
	env := [][2]string{
		{"OTEL_SDK_DISABLED", "false"},
		{"OTEL_EXPORTER_OTLP_HEADERS", headers},
		{"OTEL_EXPORTER_OTLP_TRACES_LIVE", "1"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT", r.url},
		{"OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"},
	}
	for _, kind := range []string{"TRACES", "LOGS", "METRICS"} {
		env = append(env,
			[2]string{"OTEL_EXPORTER_OTLP_" + kind + "_ENDPOINT", r.url + "/v1/" + strings.ToLower(kind)},
			[2]string{"OTEL_EXPORTER_OTLP_" + kind + "_PROTOCOL", "http/protobuf"},
			[2]string{"OTEL_EXPORTER_OTLP_" + kind + "_HEADERS", headers})
	}
	return env
}

func (r *receiver) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := r.server.Shutdown(ctx); errors.Is(err, context.DeadlineExceeded) {
		_ = r.server.Close()
	}
}

// begin directs the following output to a step.
func (r *receiver) begin(step ui.Step, log io.Writer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.step, r.log, r.ran = step, log, 0
	r.rest = map[string]string{}
}

// end stops the output to the step and reports whether the engine had to run nothing in it. If an
// engine sends no reports at all, end does not assume that it ran nothing.
func (r *receiver) end() (cached bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rest := range r.rest {
		r.passLine(rest)
	}
	r.step = nil
	return r.heard && r.ran == 0
}

// batchTime is twice the period in which the engine sends.
const batchTime = 200 * time.Millisecond

func decodeRequest(w http.ResponseWriter, q *http.Request, m proto.Message) bool {
	body := io.Reader(http.MaxBytesReader(w, q.Body, maxBody))
	if q.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return false
		}
		body = io.LimitReader(z, maxBody)
	}
	data, err := io.ReadAll(body)
	if err == nil {
		err = proto.Unmarshal(data, m)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return false
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	return true
}

func (r *receiver) handleSpans(m *coltrace.ExportTraceServiceRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rs := range m.ResourceSpans {
		for _, ss := range rs.ScopeSpans {
			for _, s := range ss.Spans {
				// Note the execs that run. The engine evaluates lazily: the span of the call itself ends at
				// once, and one named resume follows if the result was not in the cache. Both its start and its
				// end arrive here.
				r.heard = true
				id := string(s.SpanId)
				if s.Name == "resume withExec" && !r.seen[id] {
					r.seen[id] = true
					r.ran++
				}
			}
		}
	}
}

// passLines collects the output of programs. It comes in pieces that end anywhere, so passLines
// keeps the rest of each span's streams until its line is complete.
func (r *receiver) passLines(m *collogs.ExportLogsServiceRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.step == nil {
		return
	}
	for _, rl := range m.ResourceLogs {
		for _, sl := range rl.ScopeLogs {
			for _, record := range sl.LogRecords {
				from := string(record.SpanId) + streamNumber(record)
				text := r.rest[from] + record.GetBody().GetStringValue()
				i := strings.LastIndexByte(text, '\n')
				for line := range strings.Lines(text[:i+1]) {
					r.passLine(line)
				}
				r.keep(from, text[i+1:])
			}
		}
	}
}

// keep keeps the beginning of a line. What is too long, or of too many streams, is passed on as a separate line.
func (r *receiver) keep(from, rest string) {
	for ; len(rest) > maxLine; rest = rest[maxLine:] {
		r.passLine(rest[:maxLine])
	}
	if delete(r.rest, from); rest == "" {
		return
	}
	if len(r.rest) >= maxStreams {
		for _, other := range r.rest {
			r.passLine(other)
		}
		clear(r.rest)
	}
	r.rest[from] = rest
}

// streamNumber returns the number of the stream that a program wrote to: standard output or
// error.
func streamNumber(record *logspb.LogRecord) string {
	for _, a := range record.Attributes {
		if a.Key == "stdio.stream" {
			return a.Value.String()
		}
	}
	return ""
}

func (r *receiver) passLine(line string) {
	if line = strings.TrimRight(line, "\r\n"); line != "" {
		fmt.Fprintln(r.log, line)
		if strings.ContainsFunc(line, unicode.IsLetter) { // not the rulers and carets of a compiler
			r.step.Log(line)
		}
	}
}
