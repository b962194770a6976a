package nightly

import (
	"slices"
	"testing"
)

// What came between two commits is linked where that is known, and nothing else is.
func TestCompareURL(t *testing.T) {
	for source, want := range map[string]string{
		"git+https://github.com/deepspeedai/DeepSpeed@master":     "https://github.com/deepspeedai/DeepSpeed/compare/aaa...bbb",
		"git+https://github.com/deepspeedai/DeepSpeed.git@master": "https://github.com/deepspeedai/DeepSpeed/compare/aaa...bbb",
		"git+https://git.example.org/DeepSpeed@master":            "",
		"git+ssh://git@github.com/a/b@master":                     "",
	} {
		e := &EntryReport{Before: &Build{Commit: "aaa"}, Build: &Build{Commit: "bbb", Source: source}}
		if got := compareURL(e); got != want {
			t.Errorf("%s: %s, want %s", source, got, want)
		}
		e.Before.Commit = "bbb"
		if got := compareURL(e); got != "" {
			t.Errorf("the same commit: %s", got)
		}
	}
}

func TestChanges(t *testing.T) {
	before := Build{Plan: "a", Commit: "1111111", Torch: "2.14.1", Archs: []string{"8.0"}, Size: 2048, Seconds: 60}
	now := before
	now.Plan, now.Commit, now.Torch, now.Archs, now.Size, now.Seconds = "b", "2222222", "2.15.0", []string{"8.0", "9.0"}, 3072, 90
	want := []string{"commit 2222222, was 1111111", "torch 2.15.0, was 2.14.1", "GPUs 8.0 9.0, was 8.0", "size 3.0 KiB (+1.0 KiB)", "built in 1m30s, was 1m00s"}
	if got := describeChanges(&before, now); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := describeChanges(&now, now); len(got) != 0 {
		t.Errorf("nothing has changed: %q", got)
	}
	if got := describeChanges(nil, now); !slices.Equal(got, []string{"the first build"}) {
		t.Errorf("%q", got)
	}
}
