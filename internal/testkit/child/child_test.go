package child_test

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/child"
)

// The pipe stays open while any descendant lives.
func TestGrandchildrenEndToo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cmd := child.Command(ctx, "bash", "-c", "sleep 60 & echo started; wait")
	r, w := io.Pipe()
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	cancel()
	if err := cmd.Wait(); err == nil || time.Since(begin) > 20*time.Second {
		t.Errorf("%v after %s", err, time.Since(begin))
	}
}

func TestLines(t *testing.T) {
	var got []string
	l := child.NewLines(func(line string) { got = append(got, line) })
	for _, piece := range []string{"one\ntw", "o\n", "\nend"} {
		if n, err := io.Copy(l, strings.NewReader(piece)); n != int64(len(piece)) || err != nil {
			t.Fatal(n, err)
		}
	}
	if want := []string{"one", "two", ""}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestTail(t *testing.T) {
	tail := child.Tail{Most: 2}
	for _, line := range []string{"a", "b", "c"} {
		tail.Add(line)
	}
	if tail.String() != "b\nc" {
		t.Errorf("%q", tail.String())
	}
	for _, c := range []struct {
		text, want string
	}{{"", ""}, {"a\nb\nc\n", "b\nc"}, {"c", "c"}} {
		if got := child.LastLines([]byte(c.text), 2); got != c.want {
			t.Errorf("%q: %q", c.text, got)
		}
	}
}
