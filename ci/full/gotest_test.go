package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/ci/gotest"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// collect reads the output that go test -json would print for these events. Their fields are
// action, test and output; all are of one package.
func collect(status error, events ...[3]string) (results, string, string, error) {
	var in, log, people bytes.Buffer
	for _, e := range events {
		line, err := json.Marshal(gotest.Event{Action: e[0], Package: "github.com/dsbuild/dsbuild/wheel", Test: e[1], Output: e[2], Elapsed: 1.5})
		if err != nil {
			return results{}, "", "", err
		}
		in.Write(append(line, '\n'))
	}
	c := newCollector(&log, ui.New(&people, ui.Options{ASCII: true}))
	if err := c.readEvents(&in); err != nil {
		return results{}, "", "", err
	}
	r, err := c.finishResults(status)
	return r, log.String(), people.String(), err
}

func TestFullPackages(t *testing.T) {
	t.Chdir("../..")
	got, err := fullPackages(t.Context())
	if err != nil || !slices.Contains(got, "github.com/dsbuild/dsbuild/wheel") || slices.Contains(got, "github.com/dsbuild/dsbuild/ci/pages") {
		t.Errorf("%q, %v", got, err)
	}
}

func TestCollectPassed(t *testing.T) {
	r, log, people, err := collect(nil,
		[3]string{"start", "", ""},
		[3]string{"run", "TestFullA", ""},
		[3]string{"output", "TestFullA", "=== RUN   TestFullA\n"},
		[3]string{"run", "TestFullA/sub", ""},
		[3]string{"output", "TestFullA/sub", "        a_test.go:7: result: peak mem"},
		[3]string{"output", "TestFullA/sub", "ory: 12.5 MiB: of\x1b[31m 200\n"},
		[3]string{"pass", "TestFullA/sub", ""},
		[3]string{"output", "TestFullA", "    a_test.go:8: the result: no fact\n"},
		[3]string{"output", "TestFullA", "    a_test.go:9: result: ratio: 1.2\n"},
		[3]string{"pass", "TestFullA", ""},
		[3]string{"output", "", "PASS\n"},
		[3]string{"pass", "", ""},
	)
	if err != nil {
		t.Fatal(err)
	}
	if want := []outcome{{"github.com/dsbuild/dsbuild/wheel", "TestFullA", "pass", 1.5}}; !slices.Equal(r.tests, want) {
		t.Errorf("tests %v", r.tests)
	}
	if want := []fact{{"peak memory", "12.5 MiB: of 200"}, {"ratio", "1.2"}}; !slices.Equal(r.facts, want) {
		t.Errorf("facts %q", r.facts)
	}
	if !strings.HasPrefix(log, "=== RUN   TestFullA\n") || !strings.HasSuffix(log, "ratio: 1.2\nPASS\n") {
		t.Errorf("log %q", log)
	}
	lines := strings.Split(people, "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "+ TestFullA/sub (wheel)  0.") || !strings.HasPrefix(lines[1], "+ TestFullA (wheel)  0.") {
		t.Errorf("people read %q", people)
	}
}

func TestCollectFailed(t *testing.T) {
	exit := errors.New("exit status 1")
	run := func(test string) [3]string { return [3]string{"run", test, ""} }
	for name, c := range map[string]struct {
		status error
		events [][3]string
		want   string
	}{
		"failed": {exit, [][3]string{
			run("TestFullA"), run("TestFullA/sub"),
			{"output", "TestFullA/sub", "    a_test.go:7: 1 is not 2\n"},
			{"fail", "TestFullA/sub", ""},
			{"fail", "TestFullA", ""},
			{"fail", "", ""},
		}, "TestFullA (wheel) failed\n    a_test.go:7: 1 is not 2"},
		"skipped": {nil, [][3]string{
			run("TestFullA"), {"output", "TestFullA", "    a_test.go:7: no tool\n"}, {"skip", "TestFullA", ""}, {"pass", "", ""},
		}, "TestFullA (wheel) was skipped\n    a_test.go:7: no tool"},
		"a skipped subtest": {nil, [][3]string{
			run("TestFullA"), run("TestFullA/sub"), {"skip", "TestFullA/sub", ""}, {"pass", "TestFullA", ""}, {"pass", "", ""},
		}, "TestFullA/sub (wheel) was skipped"},
		"cut off": {exit, [][3]string{
			run("TestFullA"), {"output", "", "signal: killed\n"}, {"fail", "", ""},
		}, "wheel failed outside of its tests\nsignal: killed\nTestFullA (wheel) did not end"},
		"no test":      {nil, [][3]string{{"output", "", "ok\n"}, {"skip", "", ""}}, "there is no test"},
		"no output":    {exit, nil, "go test: exit status 1"},
		"passed but 1": {exit, [][3]string{run("TestFullA"), {"pass", "TestFullA", ""}}, "go test: exit status 1"},
	} {
		_, _, _, err := collect(c.status, c.events...)
		if err == nil || err.Error() != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCollectBuildFailure(t *testing.T) {
	const out = `{"ImportPath":"m/x [m/x.test]","Action":"build-output","Output":"# m/x\n"}
{"ImportPath":"m/x [m/x.test]","Action":"build-output","Output":"x/x.go:1:1: undefined: y\n"}
{"ImportPath":"m/x [m/x.test]","Action":"build-fail"}
{"Action":"start","Package":"m/x"}
{"Action":"output","Package":"m/x","Output":"FAIL\tm/x [build failed]\n"}
{"Action":"fail","Package":"m/x","Elapsed":0,"FailedBuild":"m/x [m/x.test]"}
no JSON at all`
	var log bytes.Buffer
	c := newCollector(&log, quiet())
	if err := c.readEvents(strings.NewReader(out)); err != nil {
		t.Fatal(err)
	}
	_, err := c.finishResults(errors.New("exit status 1"))
	if want := "m/x [m/x.test] does not compile\n# m/x\nx/x.go:1:1: undefined: y"; err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
	if !strings.HasSuffix(log.String(), "[build failed]\nno JSON at all") {
		t.Errorf("log %q", log.String())
	}
}
