package junit_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/junit"
)

// The counts are those of the cases, whatever the caller wrote into them, and a case has one outcome.
func TestWriteCounts(t *testing.T) {
	t.Parallel()
	said := &junit.Outcome{Message: "it <failed> & \"so\"", Type: "failed", Text: "]]> a\nb"}
	suite := junit.Suite{
		Name: "dsbuild", Tests: 99, Failures: 99, Time: junit.Time(1.23456), Timestamp: junit.At(time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("CET", 3600))),
		Properties: []junit.Property{{Name: "by", Value: "a@b"}},
		Cases: []junit.Case{
			{Name: "good"}, {Name: "failed", Failure: said}, {Name: "lost", Error: said}, {Name: "left", Skipped: &junit.Outcome{}}, {Name: "all", Failure: said, Error: said, Skipped: said},
		},
	}
	var out bytes.Buffer
	if err := junit.Write(&out, suite); err != nil {
		t.Fatal(err)
	}
	if suite.Tests != 99 {
		t.Error("the caller's suite is changed")
	}
	var doc struct {
		Tests, Failures, Errors int
		Suite                   junit.Suite `xml:"testsuite"`
	}
	if err := xml.Unmarshal(out.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	s := doc.Suite
	if s.Tests != 5 || s.Failures != 2 || s.Errors != 1 || s.Skipped != 1 || s.Time != "1.235" || s.Timestamp != "2026-01-02T02:04:05" {
		t.Errorf("%+v", s)
	}
	if got := s.Cases[1].Failure; got == nil || *got != *said {
		t.Errorf("%+v, want %+v", got, said)
	}
	if !strings.HasPrefix(out.String(), xml.Header) || !strings.HasSuffix(out.String(), "</testsuites>\n") || strings.Contains(out.String(), "system-out") {
		t.Error(out.String())
	}
}

// full is a writer with room for some bytes.
type full int

var errFull = errors.New("no space left")

func (f *full) Write(b []byte) (int, error) {
	if len(b) > int(*f) {
		return 0, errFull
	}
	*f -= full(len(b))
	return len(b), nil
}

// A report that cannot be written is an error, wherever the room ends.
func TestWriteFails(t *testing.T) {
	t.Parallel()
	suite := junit.Suite{Name: "x", Cases: []junit.Case{{Name: "a"}}}
	var whole bytes.Buffer
	if err := junit.Write(&whole, suite); err != nil {
		t.Fatal(err)
	}
	for room := range whole.Len() {
		f := full(room)
		if err := junit.Write(&f, suite); !errors.Is(err, errFull) {
			t.Fatalf("with room for %d bytes: %v", room, err)
		}
	}
	f := full(whole.Len())
	if err := junit.Write(&f, suite); err != nil {
		t.Error(err)
	}
}
