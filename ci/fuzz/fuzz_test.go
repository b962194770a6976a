package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{}, {"soon"}, {"10"}, {"-5s"}, {"0s"}, {"5s", "6s"}} {
		var out bytes.Buffer
		if code := runTargets(t.Context(), args, &out); code != 2 || !strings.Contains(out.String(), "usage: ") {
			t.Errorf("%q: exit %d, says %q", args, code, out.String())
		}
	}
}

func TestTargets(t *testing.T) {
	t.Chdir("../..")
	all, err := findTargets()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []target{{"./internal/ui", "FuzzClean"}, {"./wheel", "FuzzParseArchs"}} {
		n := 0
		for _, have := range all {
			if have == want {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%v is there %d times in %v", want, n, all)
		}
	}
}

const fine = `fuzz: elapsed: 0s, gathering baseline coverage: 0/76 completed
fuzz: elapsed: 3s, execs: 21948 (7314/sec), new interesting: 10 (total: 86)
fuzz: elapsed: 6s, execs: 22577 (209/sec), new interesting: 11 (total: 87)
PASS
ok  	github.com/dsbuild/dsbuild/internal/ui	6.107s
`

const race = `fuzz: elapsed: 3s, execs: 40304 (0/sec), new interesting: 104 (total: 108)
--- FAIL: FuzzX (3.20s)
    context deadline exceeded
FAIL
exit status 1
FAIL	github.com/dsbuild/dsbuild/internal/ui	3.202s
`

const crash = `fuzz: elapsed: 0s, gathering baseline coverage: 0/1 completed
--- FAIL: FuzzX (0.02s)
    --- FAIL: FuzzX (0.00s)
        x_test.go:9: context deadline exceeded
    
    Failing input written to testdata/fuzz/FuzzX/771e938e4458e983
    To re-run:
    go test -run=FuzzX/771e938e4458e983
FAIL
exit status 1
FAIL	example.org/x	0.022s
`

func TestVerdict(t *testing.T) {
	x := target{"./" + "x", "FuzzX"}
	t.Chdir(t.TempDir())
	file := filepath.Join("x", "testdata", "fuzz", "FuzzX", "771e938e4458e983")
	input := "go test fuzz v1\n[]byte(\"\\x00\\xff0\")\n"
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(input), 0o644)); err != nil {
		t.Fatal(err)
	}
	failed := errors.New("exit status 1")
	if err := x.readVerdict(nil, fine); err != nil {
		t.Error(err)
	}
	if err := x.readVerdict(failed, race); err != nil {
		t.Errorf("Go's own race: %v", err)
	}
	if err := x.readVerdict(nil, "testing: warning: no fuzz tests to fuzz\nPASS\n"); err == nil {
		t.Error("nothing was fuzzed, and nobody minds")
	}
	err := x.readVerdict(failed, crash)
	for _, want := range []string{"./x FuzzX: exit status 1", "x_test.go:9", "as x/testdata/fuzz/FuzzX/771e938e4458e983:\n" + input, "go test -run '^FuzzX$/^771e938e4458e983$' ./x"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nlacks %q", err, want)
		}
	}
	for _, out := range []string{"x_test.go:9: undefined: y\n", "failure while testing seed corpus entry: FuzzX/seed#0\n" + strings.Replace(race, "    context", "    x_test.go:9: context", 1)} {
		if x.readVerdict(failed, out) == nil {
			t.Errorf("not a failure: %s", out)
		}
	}
}
