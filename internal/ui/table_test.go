package ui_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/rivo/uniseg"

	"github.com/dsbuild/dsbuild/internal/ui"
)

func TestTable(t *testing.T) {
	t.Setenv("COLUMNS", "80")
	host := strings.Repeat("gpu-with-a-long-name.", 3) + "example.org"
	version := "0.19.8+torch2.15.cu132.sm80.sm90.v3 (sha256 da3dd8de61d5)"
	reason := "torch 2.4.1 is older than 2.10, CUDA 12.1, and the disk has 1.2 GiB of the 3.4 GiB that are needed"
	for name, c := range map[string]struct {
		header []string
		rows   [][]string
		want   string // the whole table, or "" if only its width and words are checked
	}{
		"plain": {
			[]string{"NAME", "GPU"},
			[][]string{{"gpu01", "A100"}, {"n", "\x1b[31mH\t100"}, {"ünï", ""}},
			"NAME   GPU\ngpu01  A100\nn      H 100\nünï\n",
		},
		"empty": {nil, nil, ""},
		"a list keeps its items": {
			[]string{"ARCH", "GPU"},
			[][]string{{"8.9", strings.Repeat("RTX 5000 Ada, ", 6) + "L4"}},
			"ARCH  GPU\n8.9   " + strings.Repeat("RTX 5000 Ada, ", 4) + "RTX 5000 Ada,\n      RTX 5000 Ada, L4\n",
		},
		"titles": {
			nil,
			[][]string{{"DeepSpeed"}, {"base", strings.Repeat("b", 90)}, {"ops", strings.Repeat("quantizer, ", 7) + "utils"}},
			"DeepSpeed\nbase       " + strings.Repeat("b", 90) + "\nops        " + strings.Repeat("quantizer, ", 5) +
				"quantizer,\n           quantizer, utils\n",
		},
		"a long name has its own line": {
			[]string{"NODES", "STATUS", "WHY"},
			[][]string{{host, "refuse", reason}, {"gpu1", "install", "-"}},
			"NODES  STATUS   WHY\n" + host + "\n       refuse   torch 2.4.1 is older than 2.10, CUDA 12.1,\n" +
				"                and the disk has 1.2 GiB of the 3.4 GiB that are needed\ngpu1   install  -\n",
		},
		"long names": {
			header: []string{"NODES", "STATUS", "DEEPSPEED", "TORCH", "CUDA", "PYTHON", "SECONDS"},
			rows:   [][]string{{host, "unreachable", version, "2.15.0+cu132", "13.2", "3.11.2", "1234.5"}, {host + "x", "ok", "-", "-", "-", "-", "0.1"}},
		},
		"a long file name at the end": {
			[]string{"CHECK", "AGAINST"},
			[][]string{{"sidecar manifest", strings.Repeat("d", 90)}, {"RECORD", "every file's hash"}},
			"CHECK             AGAINST\nsidecar manifest  " + strings.Repeat("d", 90) + "\nRECORD            every file's hash\n",
		},
		"a long file name that has room on a line": {
			[]string{"NAME", "ADDRESS", "PORT", "USER", "PYTHON", "GROUPS"},
			[][]string{{"n1", "127.0.1.1", "-", "train", "/" + strings.Repeat("d", 61), "-"}, {"n2", "127.0.1.2", "-", "train", "python3", "-"}},
			"NAME  ADDRESS    USER   PYTHON\nn1    127.0.1.1  train\n                  /" + strings.Repeat("d", 61) +
				"\nn2    127.0.1.2  train  python3\n",
		},
		"a long cell in the middle": {
			[]string{"NODE", "PATH", "STATUS"},
			[][]string{{"n1", "/" + strings.Repeat("d", 70), "ok"}, {"n2", "x", "ok"}},
			"NODE  PATH  STATUS\nn1\n      /" + strings.Repeat("d", 70) + "\n            ok\nn2    x     ok\n",
		},
		"wide letters": {header: []string{"名前", "WHY"}, rows: [][]string{{"節点", strings.Repeat("日本語 ", 30)}}},
		"many groups": {
			header: []string{"NAME", "ADDRESS", "PORT", "USER", "PYTHON", "GROUPS"},
			rows: [][]string{{
				"gpu1", "gpu1.rack1.example.org", "2222", "train", "/opt/train/venv/bin/python",
				strings.Repeat("a100,rack17,", 9) + "ib",
			}},
		},
	} {
		var out bytes.Buffer
		if err := ui.Table(&out, c.header, c.rows); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if (c.want != "" || len(c.rows) == 0) && out.String() != c.want {
			t.Errorf("%s: got:\n%s\nwant:\n%s", name, out.String(), c.want)
		}
		for line := range strings.Lines(out.String()) {
			if wide := uniseg.StringWidth(strings.TrimSuffix(line, "\n")); wide > 80 && !strings.Contains(line, strings.Repeat("d", 90)) && len(strings.Fields(line)) > 2 {
				t.Errorf("%s: %d columns: %s", name, wide, line)
			}
			if strings.HasSuffix(line, " \n") {
				t.Errorf("%s: blanks at the end of %q", name, line)
			}
		}
		words := map[string]bool{}
		for _, word := range strings.FieldsFunc(out.String(), separates) {
			words[word] = true
		}
		for _, cell := range slices.Concat(c.rows...) {
			for _, word := range strings.FieldsFunc(ui.Clean(cell), separates) {
				if !words[word] && word != "-" && c.want == "" {
					t.Errorf("%s: no %q in\n%s", name, word, out.String())
				}
			}
		}
	}
	if ui.Table(failingWriter{}, []string{"A"}, nil) == nil {
		t.Error("a failed write went unnoticed")
	}
}

func separates(r rune) bool { return r == ' ' || r == '\n' || r == ',' }

func TestTableWithoutTerminal(t *testing.T) {
	for columns, want := range map[string]int{"120": 2, "": 1, "many": 1} { // lines of the text
		t.Setenv("COLUMNS", columns)
		var out bytes.Buffer
		if err := ui.Table(&out, []string{"WHY"}, [][]string{{strings.Repeat("word ", 25)}}); err != nil || strings.Count(out.String(), "\n") != 1+want {
			t.Errorf("COLUMNS=%s: error %v, want %d lines below the header, got:\n%s", columns, err, want, out.String())
		}
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("disk full") }
