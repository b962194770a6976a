package inventory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/internal/lineerr"
	"github.com/dsbuild/dsbuild/internal/yamldoc"
	"github.com/dsbuild/dsbuild/inventory/ansible"
)

// askAnsible reads an Ansible inventory with ansible-inventory, the only program that supports all its
// formats and the variables in other files.
func (o Options) askAnsible(ctx context.Context, path string) (*Inventory, error) {
	switch {
	case path == "-":
		failed := unreadable(path,
			errors.New("detected an Ansible inventory, which cannot be read from standard input"))
		failed.Problems[0].Hint = "pass the file, or run ansible-inventory -i FILE --list | dsbuild COMMAND -"
		return nil, failed
	case o.Ansible == nil:
		failed := unreadable(path,
			errors.New("detected an Ansible inventory, but ansible-inventory is not installed"))
		failed.Problems[0].Hint = "install it (pip install ansible-core), or run " +
			"ansible-inventory -i INVENTORY --list > nodes.json where it is installed, and pass nodes.json"
		return nil, failed
	}
	text, err := o.Ansible(ctx, path)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, unreadable(path, fmt.Errorf("ansible-inventory: %w", err))
	}
	rd, err := newReader(path)
	if err != nil {
		return nil, unreadable(path, err)
	}
	rd.format = ansibleList
	inv := rd.fromAnsible(ansible.ReadList(rd.File, text, &rd.List))
	return rd.finish(inv, path)
}

// unusable is the reason why a node of an Ansible inventory cannot be used. Such an inventory may
// contain hosts that are not for dsbuild, so Select reports the reason only if the node is selected.
type unusable struct {
	node    string
	problem Problem
	apart   bool // not a mistake: dsbuild just does not deploy to such a host
}

// fromAnsible turns hosts with variables into nodes.
func (r *reader) fromAnsible(found []ansible.Host) *Inventory {
	inv := &Inventory{}
	names := make(map[string]bool, len(found))
	for _, h := range found {
		names[h.Name] = true
	}
	at, held := Position{File: r.File}, 0
	for _, h := range found {
		v := &varReader{reader: r, inv: inv, node: h.Name, vars: h.Vars}
		// The settings from its variables.
		s := &v.said
		v.connection()
		s.address = v.text(checkAddress, "ansible_host", "ansible_ssh_host")
		s.user = v.text(checkUser, "ansible_user", "ansible_ssh_user")
		s.port = v.port()
		s.identityFile = v.path("ansible_private_key_file", "ansible_ssh_private_key_file")
		s.sshArgs = v.sshArguments()
		s.python = v.python()
		s.sudo = v.become()
		v.own()
		// The groups of a host that --limit can select.
		var all []string
		for _, g := range h.Groups {
			switch {
			case names[g]:
				v.note("ignoring group %s: a node has the same name", g)
			case checkName(g) != nil:
				v.note("ignoring group %s: --limit supports only letters, digits, '.', '_' and '-'", quoted(g))
			default:
				all = append(all, g)
			}
		}
		v.said.groups = all
		if err := checkName(h.Name); err != nil {
			v.unusable("name the host, and set its address with ansible_host", "%v", err)
		}
		// Each fault has several texts.
		if held += v.said.size(); held+10*len(inv.faults)+len(inv.Notes) > maxHeld {
			r.Add(at, "", "too many variables and groups")
			return inv
		}
		hosts := v.said.hosts(h.Name, at)
		if len(inv.Hosts)+len(hosts) > MaxNames {
			r.Add(at, "", "more than %d nodes", MaxNames)
			return inv
		}
		inv.Hosts = append(inv.Hosts, hosts...)
	}
	return inv
}

// varReader reads the variables of one host.
type varReader struct {
	*reader
	inv  *Inventory
	node string
	vars map[string]any
	said settings
}

// unusable records why the host cannot be used.
func (v *varReader) unusable(advice, format string, args ...any) {
	var list lineerr.List
	list.Add(Position{File: v.File}, advice, format, args...)
	v.inv.faults = append(v.inv.faults, unusable{node: v.node, problem: list.Problems[0]})
}

// apart records that hosts of this kind are not supported.
func (v *varReader) apart(format string, args ...any) {
	v.unusable("", format, args...)
	v.inv.faults[len(v.inv.faults)-1].apart = true
}

// note records where dsbuild differs from Ansible.
func (v *varReader) note(format string, args ...any) {
	v.inv.Notes = append(v.inv.Notes, Note{v.node, fmt.Sprintf(format, args...)})
}

// get returns the last of several variables that has a value.
func (v *varReader) get(names ...string) (name string, value any, ok bool) {
	for _, n := range names {
		if one := v.vars[n]; one != nil && one != "" {
			name, value, ok = n, one, true
		}
	}
	return name, value, ok
}

// encryptedHint is the hint for an encrypted value.
const encryptedHint = "write it unencrypted, or encrypt the whole file, which ansible-inventory decrypts"

// text reads a variable as a text.
func (v *varReader) text(check func(string) error, names ...string) optional[string] {
	name, value, ok := v.get(names...)
	if !ok || !v.evaluated(name, value) {
		return optional[string]{}
	}
	var text string
	switch value := value.(type) {
	case string:
		text = value
	case int64:
		text = strconv.FormatInt(value, 10)
	case float64:
		text = strconv.FormatFloat(value, 'f', -1, 64)
	default:
		v.unusable("", "%s must be a string", name)
		return optional[string]{}
	}
	err := checkWord(text)
	if err == nil && check != nil {
		err = check(text)
	}
	if err != nil {
		v.unusable("", "%s: %v", name, err)
		return optional[string]{}
	}
	return some(text)
}

// evaluated reports whether a value is neither encrypted nor a template, and records a fault if not.
func (v *varReader) evaluated(name string, value any) bool {
	switch {
	case holds(value, func(value any) bool { return value == ansible.Secret{} }):
		v.unusable(encryptedHint, "%s is encrypted", name)
		return false
	case holds(value, isTemplate):
		v.unusable("replace the template with its value", "%s is a template, which only an Ansible play can evaluate", name)
		return false
	}
	return true
}

func isTemplate(value any) bool {
	text, _ := value.(string)
	return ansible.IsTemplate(text)
}

// holds reports whether is returns true for a value or for one nested in it.
func holds(value any, is func(any) bool) bool {
	switch inner := value.(type) {
	case []any:
		return slices.ContainsFunc(inner, func(one any) bool { return holds(one, is) })
	case map[string]any:
		for k, one := range inner {
			if is(k) || holds(one, is) {
				return true
			}
		}
		return false
	}
	return is(value)
}

func (v *varReader) port() optional[int] {
	names := []string{"ansible_port", "ansible_ssh_port"}
	text := v.text(nil, names...)
	if !text.set {
		return optional[int]{}
	}
	n, err := portNumber(text.value)
	if err != nil {
		name, _, _ := v.get(names...)
		v.unusable("", "%s: %v", name, err)
		return optional[int]{}
	}
	return some(n)
}

// path reads a local file name. A relative path is relative to the working directory, as in Ansible.
func (v *varReader) path(names ...string) optional[string] {
	text := v.text(nil, names...)
	if !text.set {
		return text
	}
	path, err := v.expandHome(text.value)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		name, _, _ := v.get(names...)
		v.unusable("write the full path", "%s: %v", name, err)
		return optional[string]{}
	}
	return some(path)
}

// connection reads the connection settings and the user.
func (v *varReader) connection() {
	if name, value, ok := v.get("ansible_connection"); ok {
		switch kind, _ := value.(string); strings.TrimPrefix(kind, "ansible.builtin.") {
		case "ssh", "smart", "paramiko", "paramiko_ssh":
		case "local":
			v.note("ignoring %s=local: nodes are always reached over SSH", name)
		default:
			v.apart("%s is %s: only SSH is supported", name, quoted(value))
		}
	}
	if _, value, ok := v.get("ansible_shell_type"); ok && (value == "powershell" || value == "cmd") {
		v.apart("ansible_shell_type is %s: only POSIX shells are supported", quoted(value))
	}
	for _, secret := range [][]string{
		{"ansible_password", "ansible_ssh_pass", "ansible_ssh_password"},
		{"ansible_private_key", "ansible_ssh_private_key"},
	} {
		if name, _, ok := v.get(secret...); ok {
			v.note("ignoring %s: logins use key files and the SSH agent", name)
		}
	}
	for _, name := range []string{"ansible_host_key_checking", "ansible_ssh_host_key_checking"} {
		if _, value, ok := v.get(name); ok && !isTrue(value) {
			v.note("ignoring %s: host keys are always checked", name)
		}
	}
	if name, _, ok := v.get("ansible_ssh_executable"); ok {
		v.note("ignoring %s: the ssh on PATH is used", name)
	}
}

// become returns the user as whom Ansible runs commands.
func (v *varReader) become() optional[string] {
	name, value, ok := v.get("ansible_become")
	if _, _, own := v.get("dsbuild_sudo"); own || !ok {
		return optional[string]{}
	}
	if isTemplate(value) {
		v.unusable("replace the template with its value, or set dsbuild_sudo",
			"%s is a template, which only an Ansible play can evaluate", name)
		return optional[string]{}
	}
	if !isTrue(value) {
		return some("")
	}
	method := v.text(nil, "ansible_become_method").or(some("sudo"))
	if strings.TrimPrefix(method.value, "ansible.builtin.") != "sudo" {
		v.unusable("set dsbuild_sudo: false to run commands as the login user",
			"ansible_become_method is %s: only sudo is supported", quoted(method.value))
		return optional[string]{}
	}
	if name, _, ok := v.get("ansible_become_password", "ansible_become_pass"); ok {
		v.note("ignoring %s: sudo's prompts appear at the terminal", name)
	}
	return v.text(checkUser, "ansible_become_user").or(some("root"))
}

// quoted formats a value for a message.
func quoted(value any) string { return strconv.Quote(lineerr.Clip(fmt.Sprint(value))) }

// isTrue reports whether Ansible reads the value as yes.
func isTrue(value any) bool {
	return slices.Contains([]string{"true", "yes", "on", "1", "t", "y"}, strings.ToLower(fmt.Sprint(value)))
}

// envPython matches an interpreter that is started through env.
var envPython = regexp.MustCompile(`^/usr/bin/env\s+([A-Za-z0-9_.-]+)$`)

// python returns Ansible's own interpreter, if a variable sets it. It is often not the training
// environment's interpreter, which dsbuild_python sets.
func (v *varReader) python() optional[string] {
	const name = "ansible_python_interpreter"
	if _, _, own := v.get("dsbuild_python"); own {
		return optional[string]{} // own reads it with dsbuild's other variables
	}
	_, value, _ := v.get(name)
	text, _ := value.(string)
	switch {
	case slices.Contains([]string{"auto", "auto_silent", "auto_legacy", "auto_legacy_silent"}, text):
		return optional[string]{}
	case isTemplate(value):
		v.note("%s is a template, which only an Ansible play can evaluate: "+
			"using the default Python; set dsbuild_python to override it", name)
		return optional[string]{}
	case envPython.MatchString(text):
		return some(envPython.FindStringSubmatch(text)[1])
	}
	return v.text(checkPython, name)
}

// ownVars returns the keys of a node for which Ansible has no variable. Their variables have the prefix
// dsbuild_.
func ownVars() []string {
	return []string{"env", "envs", "exec_prefix", "proxy_jump", "python", "setup", "slots", "sudo"}
}

// own reads dsbuild's own variables, which mean the same as a node's keys of that name. slots, as in a
// hostfile, means dsbuild_slots.
func (v *varReader) own() {
	var names []string
	for name := range v.vars {
		_, slots := v.vars["dsbuild_slots"]
		if strings.HasPrefix(name, "dsbuild_") || name == "slots" && !slots {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		key := strings.TrimPrefix(name, "dsbuild_")
		switch {
		case !slices.Contains(ownVars(), key):
			advice := "known variables: dsbuild_" + strings.Join(ownVars(), ", dsbuild_")
			if near := lineerr.Nearest(key, ownVars()); near != "" {
				advice = "did you mean dsbuild_" + near + "?"
			}
			v.unusable(advice, "unknown variable %s", quoted(name))
		case v.vars[name] != nil && v.evaluated(name, v.vars[name]):
			v.key(name, key)
		}
	}
}

// key reads one variable in the way dsbuild reads the key of a node.
func (v *varReader) key(name, key string) {
	value := v.vars[name]
	if text, ok := value.(string); ok && key == "exec_prefix" {
		words, err := ansible.SplitWords(text)
		if err != nil {
			v.unusable("", "%s: %v", name, err)
			return
		}
		value = words
	}
	text, err := json.Marshal(value) // JSON is YAML
	if err != nil {
		v.unusable("", "%s: %v", name, err)
		return
	}
	// Positions inside the value are unknown, so every error has the variable's position.
	inner := &reader{Reader: yamldoc.Reader{File: v.File}, dir: v.dir, home: v.home}
	if node := inner.Parse(text); node != nil {
		for _, k := range keys() {
			if k.name == key {
				k.read(inner, &v.said, node)
			}
		}
	}
	for _, p := range inner.Problems {
		v.unusable(p.Hint, "%s: %s", name, p.Message)
	}
}
