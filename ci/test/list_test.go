package main

import (
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/ci/gotest"
)

const events = `{"Action":"start","Package":"m/a"}
{"Action":"output","Package":"m/a","Test":"TestOne","Output":"=== RUN   TestOne\n"}
{"Action":"output","Package":"m/a","Test":"TestOne","Output":"    one_test.go:7: starting\n"}
{"Action":"output","Package":"m/a","Test":"TestOne","Output":"    one_test.go:9: needs an engine: none here; looked for\n"}
{"Action":"output","Package":"m/a","Test":"TestOne","Output":"          docker: not installed\n"}
{"Action":"output","Package":"m/a","Test":"TestOne","Output":"--- SKIP: TestOne (0.00s)\n"}
{"Action":"skip","Package":"m/a","Test":"TestOne"}
{"Action":"output","Package":"m/a","Test":"TestFine","Output":"    one_test.go:12: all is well\n"}
{"Action":"pass","Package":"m/a","Test":"TestFine"}
{"Action":"output","Package":"m/a","Output":"PASS\n"}
{"Action":"output","Package":"m/a","Output":"ok  \tm/a\t0.1s\n"}
{"Action":"pass","Package":"m/a"}
{"Action":"output","Package":"m/b","Test":"TestTwo","Output":"    two_test.go:3: needs an engine: none here; looked for\n"}
{"Action":"skip","Package":"m/b","Test":"TestTwo"}
{"Action":"output","Package":"m/b","Test":"TestBad","Output":"    two_test.go:5: one is not two\n"}
{"Action":"output","Package":"m/b","Test":"TestBad","Output":"--- FAIL: TestBad (0.00s)\n"}
{"Action":"fail","Package":"m/b","Test":"TestBad"}
{"Action":"output","Package":"m/b","Output":"FAIL\tm/b\t0.1s\n"}
{"Action":"fail","Package":"m/b"}
go: a line that is no event
{"Action":"output","Package":"m/c","Output":"?   \tm/c\t[no test files]\n"}
{"Action":"skip","Package":"m/c"}
`

func TestList(t *testing.T) {
	var out strings.Builder
	l := newList(&out)
	if err := gotest.Read(strings.NewReader(events), &out, l.handleEvent); err != nil {
		t.Fatal(err)
	}
	l.printSkipped()
	const want = `ok  	m/a	0.1s
    two_test.go:5: one is not two
--- FAIL: TestBad (0.00s)
FAIL	m/b	0.1s
go: a line that is no event
?   	m/c	[no test files]
not run on this machine:
  needs an engine: none here; looked for: TestOne (a), TestTwo (b)
`
	if out.String() != want {
		t.Errorf("%s\nin place of\n%s", &out, want)
	}
}

func TestListOfNothing(t *testing.T) {
	var out strings.Builder
	l := newList(&out)
	l.printSkipped()
	if out.Len() > 0 {
		t.Errorf("%s", &out)
	}
}

func TestManyTestsAreCounted(t *testing.T) {
	var out strings.Builder
	l := newList(&out)
	for _, name := range []string{"A", "B", "C", "D", "E", "F"} {
		l.leaveOut("needs root", name)
	}
	l.printSkipped()
	if !strings.Contains(out.String(), "  needs root: A, B, C, D and 2 more\n") {
		t.Error(out.String())
	}
}
