package ui_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
)

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"plain\ttext\n":                    "plain\ttext\n",
		"\x1b[31mred\x1b[0m":               "red",
		"\x1b]0;title\x07after":            "after",
		"\x1b]8;;http://x\x1b\\link\x1b\\": "link",
		"\x1b]0;cut off\nnext":             "\nnext",
		"\x1bPq#0\x1b\\sixel":              "sixel",
		"\x1bc reset":                      " reset",
		"\x1b(Bset":                        "set",
		"\u009b2J8-bit":                    "8-bit",
		"\u009d0;t\u009crest":              "rest",
		"trailing \x1b":                    "trailing ",
		"trailing \x1b[":                   "trailing ",
		"overwritten\rshown":               "overwritten\nshown",
		"dos\r\nline":                      "dos\nline",
		"bell\a, back\bspace, del\x7f":     "bell, backspace, del",
		"bad \xff utf-8":                   "bad \ufffd utf-8",
		"right \u202eto left\u2066":        "right to left",
		"zero\u200bwidth":                  "zerowidth",
		"ünïcödé 漢字 stay":                  "ünïcödé 漢字 stay",
		"\x1b\x1b[31m":                     "",
		"\x1b[\x1b[31mx":                   "x",
	} {
		if got := ui.Clean(in); got != want {
			t.Errorf("Clean(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzClean(f *testing.F) {
	for _, s := range []string{"", "a\x1b[31mb", "\x1b]0;x\x07", "\x1b\x1b[[", "\xff\x1b\u009b", "\x1b[\x1b[31m[2J"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := ui.Clean(s)
		for _, r := range got {
			if r != '\n' && r != '\t' && (r < ' ' || r >= 0x7f && r < 0xa0) {
				t.Fatalf("%U left in %q", r, got)
			}
		}
		if !utf8.ValidString(got) {
			t.Fatalf("no UTF-8: %q", got)
		}
		if again := ui.Clean(got); again != got {
			t.Fatalf("%q cleaned again is %q", got, again)
		}
	})
}

func TestFoldNames(t *testing.T) {
	for want, names := range map[string]string{
		"":                        "",
		"gpu1":                    "gpu1",
		"gpu[01-03,16]":           "gpu01 gpu03 gpu02 gpu16",
		"gpu[8-11]":               "gpu8 gpu9 gpu10 gpu11",
		"gpu[08-10]":              "gpu08 gpu09 gpu10",
		"gpu[1,01,2]":             "gpu1 gpu01 gpu2",
		"n[1-2]x[1-2]":            "n1x1 n1x2 n2x1 n2x2",
		"r[1-2]x[1-2]":            "r1x1 r1x2 r2x2 r2x1",
		"n1x[1-2],n2x1":           "n1x1 n1x2 n2x1",
		"gpu[1-2],cpu1":           "gpu1 cpu1 gpu2",
		"gpu[1-2]/train":          "gpu1/train gpu2/train",
		"a100-[07-08].dc1":        "a100-07.dc1 a100-08.dc1",
		"x":                       "x x x",
		"[98-100]":                "98 99 100",
		"v1234567890123456789,v2": "v1234567890123456789 v2",
	} {
		if got := ui.FoldNames(strings.Fields(names)); got != want {
			t.Errorf("FoldNames(%s) = %s, want %s", names, got, want)
		}
	}
}

func TestFold(t *testing.T) {
	got := ui.Fold([]ui.Named{
		{Name: "gpu1", Text: "ok"},
		{Name: "gpu2", Text: "no gcc"},
		{Name: "gpu3", Text: "ok"},
		{Name: "gpu4", Text: "ok"},
	})
	want := []ui.Folded{{Names: "gpu[1,3-4]", Cell: "gpu[1,3-4]", Count: 3, Text: "ok"}, {Names: "gpu2", Cell: "gpu2", Count: 1, Text: "no gcc"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Texts that differ share a line if their cause is the same.
func TestFoldByCause(t *testing.T) {
	t.Parallel()
	var all []ui.Named
	for i := range 800 {
		all = append(all, ui.Named{Name: fmt.Sprintf("gpu%03d", i), Text: fmt.Sprintf("no connection to 10.0.%d.%d:22", i/200, i%200), Cause: "no connection to …"})
	}
	all = append(all, ui.Named{Name: "cpu1", Text: "no pip"}, ui.Named{Name: "cpu2", Text: "no pip", Cause: "no pip"}, ui.Named{Name: "cpu3", Text: "no connection to 10.0.0.0:22"})
	got := ui.Fold(all)
	want := []ui.Folded{
		{Names: "gpu[000-799]", Cell: "gpu[000-799]", Count: 800, Text: "no connection to 10.0.0.0:22", Example: "gpu000"},
		{Names: "cpu[1-2]", Cell: "cpu[1-2]", Count: 2, Text: "no pip"},
		{Names: "cpu3", Cell: "cpu3", Count: 1, Text: "no connection to 10.0.0.0:22"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestFoldCell(t *testing.T) {
	t.Parallel()
	host := strings.Repeat("gpu.", 15)
	for names, want := range map[string]string{
		"gpu1 gpu2":              "gpu[1-2]",
		host + "a":               host + "a",
		host + "a " + host + "b": host + "a,… (2)",
		"a2 a4 a6 a8 a10 a12 a14 a16 a18 a20 a22 a24 a26 a28 a30 a32 a34 a36": "a[2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,…] (18)",
	} {
		if got := ui.FoldCell(strings.Fields(names)); got != want {
			t.Errorf("%s: %s, want %s", names, got, want)
		}
	}
}

func TestFoldWithin(t *testing.T) {
	t.Parallel()
	names := []string{"gpu1", "gpu3", "gpu5", "gpu7", "cpu1"}
	for width, want := range map[int]string{40: "gpu[1,3,5,7],cpu1", 14: "gpu[1,3,5,7],…", 12: "gpu[1,3,5,…]", 4: ""} {
		if got, whole := ui.FoldWithin(names, width); got != want || whole != (width == 40) {
			t.Errorf("%d: %q, %v", width, got, whole)
		}
	}
}

func TestJSON(t *testing.T) {
	var out bytes.Buffer
	if err := ui.JSON(&out, map[string]string{"requires": "torch>=2"}); err != nil {
		t.Fatal(err)
	}
	if want := "{\n  \"requires\": \"torch>=2\"\n}\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

func TestPrintError(t *testing.T) {
	plain := errors.New("no wheel fits")
	hinted := fault.WithHint(errors.New("gpu01: no pip\x1b[2J"), "install %s", "pip")
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"nil":      {nil, ""},
		"plain":    {plain, "dsbuild: no wheel fits\n"},
		"hinted":   {hinted, "dsbuild: gpu01: no pip\nhint: install pip\n"},
		"joined":   {errors.Join(hinted, plain), "dsbuild: gpu01: no pip\nhint: install pip\ndsbuild: no wheel fits\n"},
		"prefixed": {fmt.Errorf("deploy: %w", errors.Join(plain, plain)), "dsbuild: deploy: no wheel fits\nno wheel fits\n"},
	} {
		var out bytes.Buffer
		ui.PrintError(&out, c.err, nil)
		if out.String() != c.want {
			t.Errorf("%s: got %q, want %q", name, out.String(), c.want)
		}
	}
}

func TestSizeAndDuration(t *testing.T) {
	for size, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 1<<20 - 1: "1.0 MiB", 44_145_050: "42.1 MiB", 5 << 40: "5.0 TiB", -2048: "-2.0 KiB",
		math.MaxInt64: "8.0 EiB", math.MinInt64: "-8.0 EiB",
	} {
		if got := ui.Size(size); got != want {
			t.Errorf("Size(%d) = %s, want %s", size, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "0.0s", 340 * time.Millisecond: "0.3s", 42 * time.Second: "42.0s", 59970 * time.Millisecond: "1m00s",
		185 * time.Second: "3m05s", 3599800 * time.Millisecond: "1h00m", 62 * time.Minute: "1h02m", -time.Second: "-1.0s",
		math.MaxInt64: "2562047h47m", math.MinInt64: "-2562047h47m", math.MinInt64 + 1: "-2562047h47m",
	} {
		if got := ui.Duration(d); got != want {
			t.Errorf("Duration(%d) = %s, want %s", d, got, want)
		}
	}
}

// What controls a terminal or hides text is escaped in JSON, and comes back as it was.
func TestJSONEscapes(t *testing.T) {
	t.Parallel()
	const text = "a\u202eb\u009b31mc\u007fd\u200be\U000e0041f\u00adg\u2028\tü🔑\n"
	var out strings.Builder
	if err := ui.JSON(&out, map[string]string{text: text}); err != nil {
		t.Fatal(err)
	}
	for _, r := range out.String() {
		if r != '\n' && ui.Clean(string(r)) != string(r) {
			t.Errorf("%q is in %q", r, out.String())
		}
	}
	var back map[string]string
	if err := json.Unmarshal([]byte(out.String()), &back); err != nil || back[text] != text || !strings.Contains(out.String(), "ü🔑") {
		t.Errorf("%v: %q gives %q", err, out.String(), back)
	}
}
