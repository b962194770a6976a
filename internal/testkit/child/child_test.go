package child_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/child"
	"github.com/dsbuild/dsbuild/internal/testkit/proc"
)

// The pipe stays open while any descendant lives.
func TestGrandchildrenEndToo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cmd := child.Command(ctx, "bash", "-c", "sleep 600 & echo $!; wait")
	r, w := io.Pipe()
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var grandchild int
	if _, err := fmt.Fscan(r, &grandchild); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := cmd.Wait(); err == nil {
		t.Error("no error")
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if p, err := proc.Read(proc.Root, grandchild); err != nil || p.Ended() {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d still runs", grandchild)
		}
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
