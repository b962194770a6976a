package daggerbuilder

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	collogs "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/proto"
)

// The receiver takes output only with the token that the client got, and keeps no endless line.
func TestReceiverOfStrangers(t *testing.T) {
	t.Parallel()
	r, err := newReceiver()
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	var log bytes.Buffer
	steps := &record{}
	r.begin(steps, &log)
	token := ""
	for _, v := range r.environment() {
		if strings.HasSuffix(v[0], "_HEADERS") {
			name, value, _ := strings.Cut(v[1], "=")
			if token = value; name != tokenHeader || len(value) < 20 {
				t.Errorf("%s=%s, want a random token", v[0], v[1])
			}
		}
	}
	post := func(path, token, span, text string) int {
		body := &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: text}}
		m := &collogs.ExportLogsServiceRequest{ResourceLogs: []*logspb.ResourceLogs{{ScopeLogs: []*logspb.ScopeLogs{{
			LogRecords: []*logspb.LogRecord{{SpanId: []byte(span), Body: body}},
		}}}}}
		data, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url+path, bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			q.Header.Set(tokenHeader, token)
		}
		res, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	for _, wrong := range []string{"", "x", strings.ToLower(token), token + "x"} {
		for _, path := range []string{"/v1/logs", "/v1/traces", "/v1/metrics", "/"} {
			if got := post(path, wrong, "span", "evil\n"); got != http.StatusUnauthorized {
				t.Errorf("%s with token %q: status %d", path, wrong, got)
			}
		}
	}
	if got := post("/v1/logs", token, "span", "from the "); got != http.StatusOK {
		t.Errorf("with the token: status %d", got)
	}
	post("/v1/logs", token, "span", "engine\nrest")
	if log.String() != "from the engine\n" {
		t.Errorf("the log has %q", &log)
	}
	post("/v1/logs", token, "long", strings.Repeat("x", 3*maxLine+1))
	for i := range 2 * maxStreams {
		r.mu.Lock()
		r.keep(string(rune('a'+i)), "y")
		r.mu.Unlock()
	}
	r.mu.Lock()
	kept := 0
	for _, rest := range r.rest {
		kept += len(rest)
	}
	streams := len(r.rest)
	r.mu.Unlock()
	if streams > maxStreams || kept > maxLine+2*maxStreams || strings.Count(log.String(), "x") < 3*maxLine {
		t.Errorf("%d streams with %d bytes are kept; the log has %d bytes", streams, kept, log.Len())
	}
	if got := post("/v1/logs", token, "span", strings.Repeat("z", maxBody)); got != http.StatusBadRequest {
		t.Errorf("a body that is too large: status %d", got)
	}
}
