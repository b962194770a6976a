package main

import (
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/wheel"
)

// hints writes out the commands and settings in hints. It knows the running command.
type hints struct {
	command   *cobra.Command       // nil in tests
	flags     *pflag.FlagSet       // those of the command, or of the deploy that it runs
	inventory string               // as given; optional
	lock      string               // of the environment that nightly deploys; optional
	nodes     *inventory.Inventory // nil until it is read
}

// newHints returns the hints of a command.
func newHints(cmd *cobra.Command, args []string) hints {
	h := hints{command: cmd, flags: cmd.Flags()}
	if strings.HasSuffix(cmd.Use, " INVENTORY") && len(args) == 1 {
		h.inventory = args[0]
	}
	for _, name := range []string{"for", "inventory"} {
		if f := cmd.Flags().Lookup(name); f != nil && h.inventory == "" && f.Value.Type() == "string" {
			h.inventory = f.Value.String()
		}
	}
	return h
}

// onNode matches hints with commands that change a node.
var onNode = regexp.MustCompile(`(^|\brun |nstall [^:;]*)on the node: `)

// expand writes out a hint for nodes: a value of --limit, or "" if they are unknown. Commands on nodes must run as dsbuild
// does there: pip, for one, would install for another user without a word.
func (h hints) expand(hint, nodes string) string {
	text := fault.Expand(hint, func(c fault.Command) string { return h.commandLine(c, nodes) }, h.setting(nodes))
	user := h.common(nodes, func(host inventory.Host) string { return host.Sudo })
	if user != "" && onNode.MatchString(text) && !strings.Contains(text, "sudo -u ") {
		text += "; run commands on the node as " + user + ": sudo -u " + remote.Word(user) + " COMMAND"
	}
	return text
}

// common returns a value that the hosts of the given nodes share. It returns "" if they have different ones.
func (h hints) common(nodes string, value func(inventory.Host) string) string {
	if h.nodes == nil {
		return ""
	}
	chosen, err := h.nodes.Select(nodes)
	if err != nil {
		return ""
	}
	first := value(chosen.Hosts[0])
	if slices.ContainsFunc(chosen.Hosts, func(host inventory.Host) bool { return value(host) != first }) {
		return ""
	}
	return first
}

// inventoryName is the inventory as a word of a command line.
func (h hints) inventoryName() string {
	if h.inventory == "" {
		return "INVENTORY"
	}
	return remote.Word(h.inventory)
}

// commandLine writes out a command that changes only the given nodes, and installs only what is meant.
func (h hints) commandLine(c fault.Command, nodes string) string {
	if len(c.Nodes) > 0 {
		nodes = ui.FoldNames(c.Nodes)
	} else if nodes == "" {
		nodes = h.value("limit")
	}
	name, after := h.target(c.Do), ""
	words := []string{"dsbuild", name, h.inventoryName()}
	switch name {
	case "wheel":
		return "dsbuild wheel --for " + h.inventoryName()
	case "env lock":
		return h.lockAgain(c.Flags)
	case "deploy":
		var word string
		word, after = h.wheelWord(c.Wheel)
		words = append(words, "--wheel", word)
	case "env deploy", "env rollback":
		if h.lock != "" || !h.relative() || h.value("env") != "" {
			words = append(words, "--lock", remote.Word(absolutePath(h.lockfile())))
		}
	}
	words = h.carry(words, name, c)
	if slices.Contains(c.Flags, "--run") { // the nodes of a run are those that it changed
		nodes = ""
	}
	for _, flag := range c.Flags {
		words = append(words, remote.Word(flag))
	}
	if nodes != "" {
		words = append(words, "--limit", remote.Word(nodes))
	}
	return strings.Join(words, " ") + after
}

// lockAgain returns the command that writes the lockfile again: for all nodes, because it is theirs, too.
func (h hints) lockAgain(flags []string) string {
	if h.lock != "" || h.value("env") != "" || h.running() == "env lock" { // these commands lock whenever they run
		return "rerun the command"
	}
	file, after := h.environmentFile()
	words := []string{"dsbuild env lock", remote.Word(file)}
	if lock := h.lockfile(); after != "" {
		words = append(words, "-o", remote.Word(lock))
	}
	words = append(words, "--for", h.inventoryName())
	return strings.Join(append(words, flags...), " ") + after
}

// running is the running command; "" in tests.
func (h hints) running() string {
	if h.command == nil {
		return ""
	}
	_, name, _ := strings.Cut(h.command.CommandPath(), " ")
	return name
}

// target returns the command that does what a hint wants where this command runs.
func (h hints) target(do string) string {
	running := h.running()
	switch {
	case do != "deploy" && do != "rollback":
	case do == "deploy" && running == "ship":
		return running
	case strings.HasPrefix(running, "env "), h.lock != "", h.value("env") != "":
		return "env " + do
	}
	return do
}

// lockfile is the lockfile of the environment that the running command is about.
func (h hints) lockfile() string {
	lock := cmp.Or(h.lock, h.value("lock"))
	if file := h.value("env"); lock == "" && file != "" {
		lock = lockName(file)
	}
	return cmp.Or(lock, "environment.lock")
}

// environmentFile returns the file that the lockfile of the running command is made from, and what to add behind a
// command if the user must complete it.
func (h hints) environmentFile() (file, after string) {
	if file = h.value("env"); file != "" {
		return file, ""
	}
	lock := h.lockfile()
	file = strings.TrimSuffix(lock, filepath.Ext(lock)) + ".yaml"
	if _, err := os.Stat(file); err != nil && filepath.Base(lock) != "environment.lock" {
		return "FILE", " (FILE: the environment file)"
	}
	return file, ""
}

// value is the value of a flag; "" without the flag.
func (h hints) value(flag string) string {
	if h.flags == nil || h.flags.Lookup(flag) == nil {
		return ""
	}
	return h.flags.Lookup(flag).Value.String()
}

// relative reports whether the inventory is a relative path: then the command only works in this directory, and other
// paths may be relative, too.
func (h hints) relative() bool {
	_, err := os.Stat(h.inventory)
	return err == nil && !filepath.IsAbs(h.inventory)
}

// carry adds to the words of a command the flags of the running command that it has, too. Those that choose nodes, or
// only this run's order and output, are not among them.
func (h hints) carry(words []string, name string, c fault.Command) []string {
	if h.command == nil {
		return words
	}
	cmd, _, err := h.command.Root().Find(strings.Fields(name))
	if err != nil {
		return words
	}
	h.flags.VisitAll(func(f *pflag.Flag) {
		other := cmd.Flags().Lookup(f.Name)
		group := f.Annotations[groupRule]
		switch {
		case !f.Changed, other == nil,
			// The commands may have other choices.
			other.Value.Type() != f.Value.Type() && !slices.Contains(strings.Split(other.Value.Type(), "|"), f.Value.String()),
			slices.Contains(group, groupOutput), slices.Contains(group, groupGlobal),
			slices.Contains([]string{"limit", "force", "dry-run", "serial", "max-fail", "gate", "forks"}, f.Name),
			f.Name == "wheel" && name == "deploy", f.Name == "lock" && slices.Contains(words, "--lock"), // named already
			slices.ContainsFunc(c.Flags, func(flag string) bool { return strings.HasPrefix(flag+" ", "--"+f.Name+" ") }):
			return
		}
		texts := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			texts = list.GetSlice()
		}
		for _, text := range texts {
			if f.Value.Type() == "bool" {
				words = append(words, strings.TrimSuffix("--"+f.Name+"="+text, "=true"))
				continue
			}
			if slices.Contains([]string{"bundle", "policy", "files", "env", "lock"}, f.Name) && !h.relative() {
				text = absolutePath(text)
			}
			words = append(words, "--"+f.Name, remote.Word(text))
		}
	})
	return words
}

// wheelWord returns the value of --wheel for a wheel, and what to add behind the command if the user must complete it.
func (h hints) wheelWord(w *fault.WheelFile) (word, after string) {
	given := h.value("wheel")
	switch {
	case w == nil && given != "":
		return remote.Word(absolutePath(given)), ""
	case w == nil || *w == (fault.WheelFile{}):
		return "WHEEL", " (WHEEL: the wheel that these nodes should run)"
	case w.Path != "":
		return remote.Word(absolutePath(w.Path)), ""
	}
	if path := findWheel(*w, given); path != "" {
		return remote.Word(path), ""
	}
	return "DIR/" + remote.Word(w.Name), " (DIR: the directory of this wheel, sha256 " + w.SHA256[:min(12, len(w.SHA256))] + ")"
}

// findWheel returns the path of a wheel that a node names: in --wheel, in deploy's default directory or in the cache;
// "" if it is in none of them.
func findWheel(w fault.WheelFile, given string) string {
	if w.Name == "" || w.Name != filepath.Base(w.Name) {
		return ""
	}
	paths := []string{filepath.Join(filepath.Dir(given), w.Name), filepath.Join(given, w.Name), filepath.Join("dist", w.Name)}
	entries, err := os.ReadDir(pipeline.DefaultStore().Dir)
	if err != nil {
		entries = nil // there is no cache
	}
	for _, e := range entries {
		paths = append(paths, filepath.Join(pipeline.DefaultStore().Dir, e.Name(), w.Name))
	}
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			if sum, _, err := wheel.HashRegular(path); err == nil && sum == w.SHA256 {
				return absolutePath(path)
			}
		}
	}
	return ""
}

// absolutePath returns the absolute path: a hint may be followed in another directory.
func absolutePath(path string) string {
	if whole, err := filepath.Abs(path); err == nil {
		return whole
	}
	return path
}

// setting returns the function that writes out a setting: of an environment with the command that locks it again, of
// nodes with what sets it for this inventory, and the interpreter that is used now.
func (h hints) setting(nodes string) func(fault.Setting) string {
	return func(s fault.Setting) string {
		if s.Key == "folder" || s.Key == "interpreter" {
			file, _ := h.environmentFile()
			return "set " + s.Key + ": in " + node.QuotePath(file) + " to " + s.To + ", and re-lock: " + h.lockAgain(nil)
		}
		key, where := h.nodes.Key(s.Key), " in "+cmp.Or(h.fileName(), "the inventory")
		if key == "" || h.inventory == "" { // check --here has no inventory
			key, where = h.elsewhere(s.Key)
		}
		text := "set " + key + where + " to " + s.To
		if s.Key == "python" {
			text += h.pythonNow(nodes)
		}
		return text
	}
}

// elsewhere returns where to set what the inventory's format has no key for: a flag, ssh_config, or another inventory.
func (h hints) elsewhere(setting string) (key, where string) {
	if f := h.flags.Lookup(setting); f != nil && slices.Contains(f.Annotations[groupRule], groupConnection) {
		return "--" + setting, ""
	}
	keyword, ok := map[string]string{
		"address": "HostName", "identity_file": "IdentityFile", "known_hosts": "UserKnownHostsFile", "port": "Port",
		"proxy_jump": "ProxyJump", "user": "User",
	}[setting]
	if ok {
		return keyword, " in ~/.ssh/config"
	}
	return setting + ":", " in a YAML inventory"
}

// fileName is the inventory's name in a sentence. It returns "" for standard input.
func (h hints) fileName() string {
	if h.inventory == "-" {
		return ""
	}
	return node.QuotePath(h.inventory)
}

// pythonNow describes the nodes' interpreter, and what chose it. It returns "" if they have different ones.
func (h hints) pythonNow(nodes string) string {
	now := h.common(nodes, func(host inventory.Host) string { return host.Python })
	switch f := h.flags.Lookup("python"); {
	case now == "":
		return ""
	case f != nil && f.Value.String() == now:
		now = "--python " + now
	case !strings.Contains(now, "/"):
		now += " on the node's PATH"
	}
	return " (now " + now + ")"
}
