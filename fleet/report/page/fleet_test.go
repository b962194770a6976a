package page_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/report/page"
)

// write returns the page of a report.
func write(t testing.TB, r *report.Report) []byte {
	t.Helper()
	about := report.About{Command: "dsbuild deploy", Inventory: "inventory.yaml", By: "train@head", At: time.Date(2026, 11, 22, 9, 30, 0, 0, time.UTC)}
	var out bytes.Buffer
	if err := page.Write(&out, r, about); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
