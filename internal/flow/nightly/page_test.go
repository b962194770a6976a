package nightly

import "testing"

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
