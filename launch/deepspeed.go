package launch

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/inventory"
)

// DeepSpeed's launcher puts its command on the line of a remote shell, through
// pdsh: what it quotes itself and what not is written down here once (DeepSpeed
// 0.19.8, launcher/runner.py and launcher/multinode_runner.py; pdsh 2.34,
// src/common/pipecmd.c).

// ByPDSH reports whether DeepSpeed's launcher reaches nodes through pdsh: with a
// single node it starts the processes itself, and no shell reads the words.
func (j *Job) ByPDSH() bool { return !j.OnEach() && len(j.Hosts) > 0 && len(j.active()) > 1 }

// OnEach reports whether DeepSpeed's launcher is started on every node by itself
// (its option --no_ssh), and not by one that logs in on the others.
func (j *Job) OnEach() bool { return j.Kind == DeepSpeed && j.DSForm == "nodes" && len(j.Hosts) > 0 }

// remoteWord is what DeepSpeed's launcher must be given so that the program on
// the nodes gets s. pdsh takes %h, %n, %u for its own; a word with a space
// DeepSpeed puts into double quotes, escaping those within; any other it passes
// as it is to the shell of the node.
func (j *Job) remoteWord(s string) string {
	if !j.ByPDSH() {
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

// envValue is a value as .deepspeed_env must have it. The file has no comments,
// no empty lines and no quotes of its own: DeepSpeed puts a value with other
// than plain characters into double quotes, without escaping what is in them.
func envValue(s string) string {
	s = strings.ReplaceAll(s, "%", "%%")
	return strings.NewReplacer(`\`, `\\`, `$`, `\$`, "`", "\\`", `"`, `\"`).Replace(s)
}

// RemoteArgs are the arguments of the script for DeepSpeed's launcher.
func (j *Job) RemoteArgs() []string {
	var all []string
	for _, a := range j.Args {
		all = append(all, j.remoteWord(a))
	}
	return all
}

// DSProgram is the program as DeepSpeed's launcher takes it.
func (j *Job) DSProgram() []string {
	if j.Module {
		return []string{"--module", j.Script}
	}
	return j.Program()
}

// checkRemote refuses what cannot be passed on.
func (b *builder) checkRemote() {
	j := b.job
	if j.OnEach() {
		return // no shell of another reads the words
	}
	for _, v := range j.vars(false) {
		if v.Value != strings.TrimSpace(v.Value) {
			b.wrong(b.said["env"], "", "DeepSpeed takes spaces from both ends of the value of %s", v.Name)
		}
	}
	for _, v := range j.Taken() {
		b.wrong(b.said["env"], "set it in ~/.ssh/environment of the nodes, or in a script that starts yours",
			"DeepSpeed's launcher cannot take %s from the environment: .deepspeed_env holds values", v.Name)
	}
	if !j.ByPDSH() {
		return
	}
	for _, w := range append([]string{j.Script}, j.Args...) {
		if strings.ContainsAny(w, "\n\r") || w == "" {
			b.wrong(b.said["args"], "put it into a file", "DeepSpeed's launcher cannot pass %q to the nodes: pdsh has one line for all words", w)
		}
	}
	if !regexp.MustCompile(`^[A-Za-z0-9_@+=:,./-]+$`).MatchString(j.Script) {
		b.wrong(b.said["script"], "rename it", "DeepSpeed's launcher passes the script %q to the nodes without quotes", j.Script)
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
			b.wrongAt(Position{File: j.Hosts[i].Position}, "say it for each host in ~/.ssh/config, or use launch torchrun",
				"DeepSpeed's launcher has one %s for all nodes: %s has %s, %s has %s", get.what, j.Hosts[0].Name, get.of(j.Hosts[0]), j.Hosts[i].Name, get.of(j.Hosts[i]))
		}
	}
}

// Hostfile is the list of nodes as DeepSpeed reads it.
func (j *Job) Hostfile() string {
	var out strings.Builder
	for _, s := range j.pool() {
		out.WriteString(inventory.HostfileLine(s.host, len(s.ids)))
	}
	return out.String()
}

// EnvFile is .deepspeed_env.
func (j *Job) EnvFile() string {
	var out strings.Builder
	for _, v := range j.Given() {
		fmt.Fprintf(&out, "%s=%s\n", v.Name, envValue(v.Value))
	}
	return out.String()
}

func (j *Job) renderDeepSpeed() ([]File, error) {
	all, err := j.files(file{"run.sh", "deepspeed.sh", 0o755})
	if err != nil {
		return nil, err
	}
	if len(j.Hosts) > 0 {
		all = append(all, File{"hostfile", 0o644, j.Hostfile()})
	}
	if env := j.EnvFile(); env != "" && j.ByPDSH() {
		all = append(all, File{".deepspeed_env", 0o644, env})
	}
	all = append(all, j.configFile()...)
	if j.OnEach() {
		blocks, err := j.blocks("run.sh")
		return append(all, blocks...), err
	}
	return all, nil
}

// configFile is the configuration that is rendered, if there is one.
func (j *Job) configFile() []File {
	if !j.DS.Rendered {
		return nil
	}
	return []File{{ConfigName, 0o644, j.configText()}}
}

// First is the first node of the inventory.
func (j *Job) First() inventory.Host { return j.Hosts[0] }
