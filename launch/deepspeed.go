package launch

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/inventory"
)

// deepspeedLauncher derives the arguments of DeepSpeed's own launcher from a job.
//
// That launcher puts its command on the line of a remote shell, through pdsh, and
// quotes some words and not others. This file holds these rules (DeepSpeed
// 0.19.8, launcher/runner.py and launcher/multinode_runner.py; pdsh 2.34,
// src/common/pipecmd.c).
type deepspeedLauncher struct{ job *Job }

// ByPDSH reports whether DeepSpeed's launcher reaches the nodes through pdsh. For a
// single node it starts the processes itself, and no remote shell reads the words.
func (l deepspeedLauncher) ByPDSH() bool {
	return !l.OnEach() && len(l.job.Hosts) > 0 && len(l.activeSlotsByNode()) > 1
}

// OnEach reports whether each node runs its own launcher (option --no_ssh). Otherwise
// one launcher logs in on the other nodes.
func (l deepspeedLauncher) OnEach() bool {
	return l.job.Kind == DeepSpeed && l.job.DSForm == "nodes" && len(l.job.Hosts) > 0
}

// remoteWord quotes s for DeepSpeed's launcher, so that the program on the nodes gets
// s. pdsh replaces %h, %n and %u. DeepSpeed puts a word with a space into double
// quotes and escapes the quotes in it; it passes any other word unquoted to the
// shell of the node.
func (l deepspeedLauncher) remoteWord(s string) string {
	if !l.ByPDSH() {
		return s
	}
	s = strings.ReplaceAll(s, "%", "%%")
	switch {
	case strings.Contains(s, " "):
		return strings.NewReplacer(`\`, `\\`, `$`, `\$`, "`", "\\`").Replace(s)
	case regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`).MatchString(s):
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// envValue escapes a value for .deepspeed_env. The file has no comments, no empty
// lines and no quotes. DeepSpeed puts a value with special characters into double
// quotes, and escapes nothing in it.
func envValue(s string) string {
	s = strings.ReplaceAll(s, "%", "%%")
	return strings.NewReplacer(`\`, `\\`, `$`, `\$`, "`", "\\`", `"`, `\"`).Replace(s)
}

// RemoteArgs are the arguments of the script for DeepSpeed's launcher.
func (l deepspeedLauncher) RemoteArgs() []string {
	var all []string
	for _, a := range l.job.Args {
		all = append(all, l.remoteWord(a))
	}
	return all
}

// DSProgram returns the program in the form of DeepSpeed's launcher.
func (l deepspeedLauncher) DSProgram() []string {
	if l.job.Module {
		return []string{"--module", l.job.Script}
	}
	return l.job.Program()
}

// checkRemote refuses words and settings that the launcher cannot pass on.
func (b launcherChecks) checkRemote() {
	j, l := b.job, deepspeedLauncher{b.job}
	if l.OnEach() {
		return // no remote shell reads the words
	}
	for _, v := range j.vars(false) {
		if v.Value != strings.TrimSpace(v.Value) {
			b.addProblem(b.said["env"], "", "DeepSpeed removes spaces at both ends of the value of %s", v.Name)
		}
	}
	for _, v := range j.Taken() {
		b.addProblem(b.said["env"], "set it in ~/.ssh/environment of the nodes, or in a script that starts yours",
			"DeepSpeed's launcher cannot copy %s from the environment: .deepspeed_env needs a value", v.Name)
	}
	if !l.ByPDSH() {
		return
	}
	for _, w := range append([]string{j.Script}, j.Args...) {
		if strings.ContainsAny(w, "\n\r") || w == "" {
			b.addProblem(b.said["args"], "put it into a file", "DeepSpeed's launcher cannot pass %q to the nodes: pdsh joins all words in one line", w)
		}
	}
	if !regexp.MustCompile(`^[A-Za-z0-9_@+=:,./-]+$`).MatchString(j.Script) {
		b.addProblem(b.said["script"], "rename it", "DeepSpeed's launcher passes the script %q to the nodes without quotes", j.Script)
	}
	for _, get := range []struct {
		what string
		of   func(inventory.Host) string
	}{
		{"user", func(h inventory.Host) string { return h.User }},
		{"port", func(h inventory.Host) string { return fmt.Sprint(h.Port) }},
		{"python", func(h inventory.Host) string { return h.Python }},
	} {
		i := slices.IndexFunc(j.Hosts, func(h inventory.Host) bool { return get.of(h) != get.of(j.Hosts[0]) })
		if i > 0 {
			b.addProblemAt(Position{File: j.Hosts[i].Position}, "set it for each host in ~/.ssh/config, or use launch torchrun",
				"DeepSpeed's launcher uses one %s for all nodes, but %s has %s and %s has %s", get.what, j.Hosts[0].Name, get.of(j.Hosts[0]), j.Hosts[i].Name, get.of(j.Hosts[i]))
		}
	}
}

// Hostfile returns the list of nodes in DeepSpeed's format.
func (l deepspeedLauncher) Hostfile() string {
	var out strings.Builder
	for _, s := range l.allSlots() {
		out.WriteString(inventory.HostfileLine(s.host, len(s.ids)))
	}
	return out.String()
}

// EnvFile is .deepspeed_env.
func (l deepspeedLauncher) EnvFile() string {
	var out strings.Builder
	for _, v := range l.job.Given() {
		fmt.Fprintf(&out, "%s=%s\n", v.Name, envValue(v.Value))
	}
	return out.String()
}

// render returns the launcher's script, hostfile and environment.
func (l deepspeedLauncher) render() ([]File, error) {
	all, err := l.job.renderFiles(file{"run.sh", "deepspeed.sh", 0o755})
	if err != nil {
		return nil, err
	}
	if len(l.job.Hosts) > 0 {
		all = append(all, File{"hostfile", 0o644, l.Hostfile()})
	}
	if env := l.EnvFile(); env != "" && l.ByPDSH() {
		all = append(all, File{".deepspeed_env", 0o644, env})
	}
	all = append(all, l.job.configFile()...)
	if l.OnEach() {
		blocks, err := l.job.renderNodeBlocks("run.sh")
		return append(all, blocks...), err
	}
	return all, nil
}

// First is the first node of the inventory.
func (l deepspeedLauncher) First() inventory.Host { return l.job.Hosts[0] }

// DSPython is the interpreter of DeepSpeed's launcher, which is that of the nodes
// too; "" for the command on PATH.
func (l deepspeedLauncher) DSPython() string {
	if l.job.Python == "" && len(l.job.Hosts) > 0 {
		return l.job.Hosts[0].Python
	}
	return l.job.Python
}
