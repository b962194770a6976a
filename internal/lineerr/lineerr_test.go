package lineerr_test

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lineerr"
)

// one is the text of the only mistake in a line, at a column.
func one(line string, column int) string {
	l := lineerr.List{Lines: []string{"first", line}}
	l.Add(lineerr.Position{File: "f", Line: 2, Column: column}, "", "wrong")
	return l.Err().Error()
}

// The caret stands below the column, in lines with tabs, other letters, and in long ones.
func TestExcerptPointsAtColumn(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 150) + "X" + strings.Repeat("b", 150)
	for _, c := range []struct {
		line   string
		column int
		at     string // the character above the caret
	}{
		{"key: value", 1, "k"},
		{"key: value", 6, "v"},
		{"\t\tkey: value", 3, "k"},
		{"grün: ✓ X", 9, "X"},
		{"key: value\r", 6, "v"},
		{long, 151, "X"},
		{long, 1, "a"},
		{long, 301, "b"},
		{strings.Repeat("ü", 200) + "X", 201, "X"},
		{strings.Repeat("a", 76) + "X", 77, "X"},
	} {
		said := strings.Split(one(c.line, c.column), "\n")
		if len(said) != 3 || said[0] != fmt.Sprintf("f:2:%d: wrong", c.column) {
			t.Errorf("%.20q:%d: %q", c.line, c.column, said)
			continue
		}
		source, caret := []rune(said[1]), len([]rune(said[2]))-1
		if caret >= len(source) || string(source[caret]) != c.at || len(source) > 120 || strings.Contains(said[1], "\t") {
			t.Errorf("%.20q:%d: the caret is not below %s:\n%s\n%s", c.line, c.column, c.at, said[1], said[2])
		}
	}
	if got := one("key", 99); !strings.HasSuffix(got, "| key\n      |    ^") {
		t.Errorf("behind the end of a line:\n%s", got)
	}
	for _, line := range []string{"", "   ", strings.Repeat("x", 20_000)} {
		if got := one(line, 1); got != "f:2:1: wrong" {
			t.Errorf("%.20q is shown: %.100q", line, got)
		}
	}
}

// Mistakes are told in the order of the file, each with its hint; a single hint is left to the caller.
func TestErrorTellsAll(t *testing.T) {
	t.Parallel()
	var l lineerr.List
	if l.Err() != nil {
		t.Error("no mistakes are an error")
	}
	l.Add(lineerr.Position{File: "f", Line: 3, Column: 2}, "do it", "third %d", 3)
	if err := l.Err(); err.Error() != "f:3:2: third 3" || fault.Hint(err) != "do it" || fault.ExitCode(err) != 2 {
		t.Errorf("%v, hint %q, code %d", err, fault.Hint(err), fault.ExitCode(err))
	}
	l.Add(lineerr.Position{File: "f", Line: 1, Column: 9}, "", "second")
	l.Add(lineerr.Position{File: "f", Line: 1, Column: 4}, "look", "first")
	l.Add(lineerr.Position{File: "f"}, "", "whole")
	l.Add(lineerr.Position{}, "", "anywhere")
	want := "f: whole\nanywhere\nf:1:4: first\n  hint: look\nf:1:9: second\nf:3:2: third 3\n  hint: do it"
	if err := l.Err(); err.Error() != want || fault.Hint(err) != "" {
		t.Errorf("%v\nhint %q", err, fault.Hint(err))
	}
	unreadable := &lineerr.Error{Problems: []lineerr.Problem{{Message: "cannot read it"}}, Cause: fs.ErrPermission}
	if !errors.Is(unreadable, fs.ErrPermission) || unreadable.Error() != "cannot read it" {
		t.Error(unreadable)
	}
}

// A file of nothing but mistakes costs little, and the error counts those that it does not show.
func TestManyMistakes(t *testing.T) {
	t.Parallel()
	var l lineerr.List
	for i := range 10_500 {
		l.Add(lineerr.Position{File: "f", Line: i + 1, Column: 1}, "", "wrong")
	}
	lines := strings.Split(l.Err().Error(), "\n")
	if len(lines) != lineerr.Shown+1 || lines[lineerr.Shown] != fmt.Sprintf("and %d more problems", 10_500-lineerr.Shown) || len(l.Problems) != 10_000 {
		t.Errorf("%d lines, the last %q; %d kept", len(lines), lines[len(lines)-1], len(l.Problems))
	}
}

// The distance is the same in both directions, and 0 only for the same word.
func TestDistance(t *testing.T) {
	t.Parallel()
	words := []string{"", "a", "ab", "ba", "deploy", "delpoy", "deplo", "H1OO", "h100", "no_cache", "no-cache", "kitten", "sitting"}
	for _, a := range words {
		for _, b := range words {
			d := lineerr.Distance(a, b)
			if d != lineerr.Distance(b, a) || (d == 0) != (a == b) || d > lineerr.Letter*max(len(a), len(b)) {
				t.Errorf("%q to %q: %d, and back %d", a, b, d, lineerr.Distance(b, a))
			}
			for _, c := range words {
				if around := lineerr.Distance(a, c) + lineerr.Distance(c, b); d > around+lineerr.Letter {
					t.Errorf("%q to %q is %d, but by %q %d", a, b, d, c, around)
				}
			}
		}
	}
	if got := lineerr.Distance("kitten", "sitting"); got != 3*lineerr.Letter {
		t.Errorf("kitten to sitting: %d", got)
	}
	if lineerr.DidYouMean("deply", []string{"deploy"}) != "did you mean deploy?" || lineerr.DidYouMean("x", []string{"deploy"}) != "" {
		t.Error("DidYouMean")
	}
	if got := lineerr.Nearest(strings.Repeat("a", 300), []string{strings.Repeat("a", 301)}); got != "" {
		t.Errorf("a word of 300 letters is compared: %.10s", got)
	}
}

func TestClip(t *testing.T) {
	t.Parallel()
	if got := lineerr.Clip(strings.Repeat("ü", 61)); got != strings.Repeat("ü", 60)+"..." {
		t.Error(got)
	}
	if got := lineerr.Clip(strings.Repeat("ü", 60)); got != strings.Repeat("ü", 60) {
		t.Error(got)
	}
}

// The names of positions leave out unknown parts.
func TestPosition(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]lineerr.Position{"": {}, "f": {File: "f", Column: 3}, "f:2:3": {File: "f", Line: 2, Column: 3}} {
		if p.String() != want {
			t.Errorf("%+v: %s", p, p)
		}
	}
}

func TestHideCredentials(t *testing.T) {
	for text, want := range map[string]string{
		"gpu=A100,deepspeed=git+https://u:s3cret@host/x@v1": "gpu=A100,deepspeed=git+https://v1",
		"git+https://s3cret@host/x@v1":                      "git+https://host/x@v1",
		"https://host/x?token=s3cret: no":                   "https://host/x no",
		"https://host/x":                                    "https://host/x",
	} {
		if got := lineerr.HideCredentials(text); got != want {
			t.Errorf("%q: %q, not %q", text, got, want)
		}
	}
}

// No message and no excerpt shows a secret. The caret stays below its column.
func TestSecretsAreHidden(t *testing.T) {
	for line, want := range map[string]string{
		"env: [HF_TOKEN=hf_s3cret]":                                "env: [HF_TOKEN=**********",
		"- {hosts: gpu1, env: {API_TOKEN: s3cret}, foo: bar}":      "- {hosts: gpu1, env: {API_TOKEN: ******** foo: bar}",
		`"ansible_password": "s3cret" "x": 1`:                      `"ansible_password": ******** "x": 1`,
		`gpu1 dsbuild_env="{\"API_TOKEN\": \"s3cret\"}"`:           `gpu1 dsbuild_env="{\"API_TOKEN\": **********}"`,
		"deepspeed: git+https://u:s3cret@host/x@v1":                "deepspeed: git+https://***************@v1",
		"requirements: [foo @ https://s3cret@host/x.whl]":          "requirements: [foo @ https://******@host/x.whl]",
		"deepspeed: git+https://host/x@v1, identity_file: /a/pass": "deepspeed: git+https://host/x@v1, identity_file: /a/pass",
		"sudo_password_file: /etc/x":                               "sudo_password_file: /etc/x",
	} {
		l := lineerr.List{Lines: []string{line}}
		l.Add(lineerr.Position{File: "f", Line: 1, Column: 3}, "", "wrong: %s", "https://u:s3cret@host/x")
		text := l.Err().Error()
		if strings.Contains(text, "s3cret") || !strings.Contains(text, "| "+want+"\n") || !strings.Contains(text, "\n      |   ^") || !strings.Contains(text, "wrong: https://host/x") {
			t.Errorf("%s\nwant %s", text, want)
		}
	}
}
