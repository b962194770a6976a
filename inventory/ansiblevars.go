package inventory

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"github.com/dsbuild/dsbuild/internal/diagnostic"
	"github.com/dsbuild/dsbuild/internal/yamldoc"
	"github.com/dsbuild/dsbuild/inventory/ansible"
)

// fault is the reason why dsbuild cannot use a node of another tool's inventory. Such an
// inventory may hold hosts that are not for dsbuild: Select reports a fault only if the user
// selects the node.
type fault struct {
	node    string
	problem Problem
	apart   bool // not a mistake: dsbuild just does not deploy to such a host
}

// fromAnsible turns hosts with variables into nodes.
func (r *reader) fromAnsible(found *ansible.Inventory) *Inventory {
	inv := &Inventory{}
	names := make(map[string]bool, len(found.Hosts))
	for _, h := range found.Hosts {
		names[h.Name] = true
	}
	known := make(map[string][]string) // files of host keys, each with the nodes that name it
	read := make(map[string]*varReader)
	shared := make(map[uintptr]*varReader) // readers by map of variables, which several hosts may share
	held := 0
	for _, h := range found.Hosts {
		id := reflect.ValueOf(h.Vars).Pointer()
		v := shared[id]
		if v == nil {
			key := sameVars(h.Vars)
			if v = read[key]; v == nil {
				v = &varReader{reader: r, vars: h.Vars}
				v.read()
				read[key] = v
			}
			shared[id] = v
		}
		// Before the faults are copied for the node: each has several texts.
		if held += 10*len(v.faults) + len(v.remarks); held > maxHeld {
			return r.tooMuch(inv, h)
		}
		v.tell(inv, h.Name)
		s := v.said
		s.groups = inv.groupsOf(h, names)
		if held += s.size(); held > maxHeld {
			return r.tooMuch(inv, h)
		}
		if err := checkName(h.Name); err != nil {
			inv.faults = append(inv.faults, fault{node: h.Name, problem: r.about(h.At, "give it a name, and its address as ansible_host", "%v", err)})
		}
		if !v.local {
			known[v.knownHosts] = append(known[v.knownHosts], h.Name)
		}
		hosts := s.hosts(h.Name, h.At)
		if len(inv.Hosts)+len(hosts) > MaxNames {
			r.Add(h.At, "", "more than %d nodes", MaxNames)
			return inv
		}
		inv.Hosts = append(inv.Hosts, hosts...)
	}
	inv.oneKnownHosts(known)
	return inv
}

// tooMuch reports, at a host, that all nodes together hold more than maxHeld.
func (r *reader) tooMuch(inv *Inventory, h ansible.Host) *Inventory {
	r.Add(h.At, "", "all nodes together have too many variables and groups")
	return inv
}

// sameVars returns a key that is equal for equal variables. Many hosts may come from one line,
// and dsbuild reads their variables once.
func sameVars(vars map[string]ansible.Var) string {
	var key strings.Builder
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		v := vars[name]
		if fmt.Fprintf(&key, "%q %d %d", name, v.At.Line, v.At.Column); v.At.Line == 0 {
			fmt.Fprintf(&key, " %#v", v.Value)
		}
	}
	return key.String()
}

// oneKnownHosts takes the file of host keys if all nodes name the same one.
func (inv *Inventory) oneKnownHosts(known map[string][]string) {
	for file, nodes := range known {
		if len(known) == 1 {
			inv.KnownHosts = file
			return
		}
		if file == "" {
			continue
		}
		for _, n := range nodes {
			inv.Remarks = append(inv.Remarks, Remark{n, "dsbuild ignores UserKnownHostsFile: it uses one file for all nodes, but here the nodes have different ones"})
		}
	}
}

// varReader reads one set of variables, for all hosts that have it.
type varReader struct {
	*reader
	vars       map[string]ansible.Var
	said       settings
	local      bool   // Ansible reaches the host without SSH
	knownHosts string // absolute; "": not given
	faults     []fault
	remarks    []string
}

// tell adds the faults and remarks of the variables to the inventory, under the node's name.
func (v *varReader) tell(inv *Inventory, node string) {
	for _, f := range v.faults {
		f.node = node
		inv.faults = append(inv.faults, f)
	}
	for _, text := range v.remarks {
		inv.Remarks = append(inv.Remarks, Remark{node, text})
	}
}

// about returns a problem at a place.
func (r *reader) about(at Position, advice, format string, args ...any) Problem {
	list := diagnostic.List{Lines: r.Lines}
	list.Add(at, advice, format, args...)
	return list.Problems[0]
}

// fault records why dsbuild cannot use hosts with these variables.
func (v *varReader) fault(at Position, advice, format string, args ...any) {
	v.faults = append(v.faults, fault{problem: v.about(at, advice, format, args...)})
}

// apart records that dsbuild does not reach hosts of this kind.
func (v *varReader) apart(at Position, format string, args ...any) {
	v.fault(at, "", format, args...)
	v.faults[len(v.faults)-1].apart = true
}

// remark records where dsbuild differs from Ansible.
func (v *varReader) remark(format string, args ...any) {
	v.remarks = append(v.remarks, fmt.Sprintf(format, args...))
}

// read reads all variables.
func (v *varReader) read() {
	s := &v.said
	v.connection()
	s.address = v.text(checkAddress, "ansible_host", "ansible_ssh_host")
	s.user = v.text(checkUser, "ansible_user", "ansible_ssh_user")
	s.port = v.port("ansible_port", "ansible_ssh_port")
	s.identityFile = v.path("ansible_private_key_file", "ansible_ssh_private_key_file")
	v.sshArguments(s)
	s.python = v.python()
	s.sudo = v.become()
	v.own(s)
}

// get returns the last of several variables that has a value.
func (v *varReader) get(names ...string) (name string, found ansible.Var, ok bool) {
	for _, n := range names {
		if one, has := v.vars[n]; has && one.Value != nil && one.Value != "" {
			name, found, ok = n, one, true
		}
	}
	return name, found, ok
}

// encryptedHint is for a value that ansible-inventory prints without decrypting it.
const encryptedHint = "write it unencrypted, or encrypt the whole file: ansible-inventory decrypts such a file"

// text reads a variable as a text.
func (v *varReader) text(check func(string) error, names ...string) optional[string] {
	name, found, ok := v.get(names...)
	if !ok {
		return optional[string]{}
	}
	var text string
	switch value := found.Value.(type) {
	case string:
		text = value
	case int64:
		text = strconv.FormatInt(value, 10)
	case float64:
		text = strconv.FormatFloat(value, 'f', -1, 64)
	case ansible.Secret:
		v.fault(found.At, encryptedHint, "%s is encrypted", name)
		return optional[string]{}
	default:
		v.fault(found.At, "", "%s must be a text", name)
		return optional[string]{}
	}
	if ansible.IsTemplate(text) {
		v.fault(found.At, "write the value itself", "%s is a template, which only Ansible can evaluate, in a play", name)
		return optional[string]{}
	}
	err := checkWord(text)
	if err == nil && check != nil {
		err = check(text)
	}
	if err != nil {
		v.fault(found.At, "", "%s: %v", name, err)
		return optional[string]{}
	}
	return some(text)
}

// port reads the port.
func (v *varReader) port(names ...string) optional[int] {
	text := v.text(nil, names...)
	if !text.set {
		return optional[int]{}
	}
	n, err := portNumber(text.value)
	if err != nil {
		name, found, _ := v.get(names...)
		v.fault(found.At, "", "%s: %v", name, err)
		return optional[int]{}
	}
	return some(n)
}

// path reads the name of a file on this machine. A relative path starts from the working
// directory, as with Ansible.
func (v *varReader) path(names ...string) optional[string] {
	text := v.text(nil, names...)
	if !text.set {
		return text
	}
	path, err := v.absolute(text.value)
	if err != nil {
		name, found, _ := v.get(names...)
		v.fault(found.At, "write the path in full", "%s: %v", name, err)
		return optional[string]{}
	}
	return some(path)
}

func (v *varReader) absolute(path string) (string, error) {
	path, err := v.expandHome(path)
	if err != nil {
		return "", err
	}
	return filepath.Abs(path)
}

// connection reads how Ansible reaches the host, and as which user.
func (v *varReader) connection() {
	if name, found, ok := v.get("ansible_connection"); ok {
		switch kind, _ := found.Value.(string); strings.TrimPrefix(kind, "ansible.builtin.") {
		case "ssh", "smart", "paramiko", "paramiko_ssh":
		case "local":
			v.local = true
			v.remark("dsbuild ignores %s=local: it reaches every node over SSH", name)
		default:
			v.apart(found.At, "%s is %s: dsbuild reaches nodes only over SSH", name, quoted(found.Value))
		}
	}
	if _, found, ok := v.get("ansible_shell_type"); ok && (found.Value == "powershell" || found.Value == "cmd") {
		v.apart(found.At, "ansible_shell_type is %s: a node needs a POSIX shell", quoted(found.Value))
	}
	for _, pass := range [][]string{
		{"ansible_password", "ansible_ssh_pass", "ansible_ssh_password"},
		{"ansible_private_key", "ansible_ssh_private_key"},
	} {
		if name, _, ok := v.get(pass...); ok {
			v.remark("dsbuild ignores %s: it logs in with key files and the agent's keys", name)
		}
	}
	for _, name := range []string{"ansible_host_key_checking", "ansible_ssh_host_key_checking"} {
		if _, found, ok := v.get(name); ok && !isTrue(found.Value) {
			v.remark("dsbuild ignores %s: it always checks host keys", name)
		}
	}
	if name, _, ok := v.get("ansible_ssh_executable"); ok {
		v.remark("dsbuild ignores %s: it has its own SSH client", name)
	}
}

// become returns the user as whom Ansible runs commands.
func (v *varReader) become() optional[string] {
	name, found, ok := v.get("ansible_become")
	if _, _, own := v.get("dsbuild_sudo"); own || !ok {
		return optional[string]{}
	}
	if text, _ := found.Value.(string); ansible.IsTemplate(text) {
		v.fault(found.At, "write the value itself, or set dsbuild_sudo", "%s is a template, which only Ansible can evaluate, in a play", name)
		return optional[string]{}
	}
	if !isTrue(found.Value) {
		return some("")
	}
	method := v.text(nil, "ansible_become_method").or(some("sudo"))
	if strings.TrimPrefix(method.value, "ansible.builtin.") != "sudo" {
		_, found, _ := v.get("ansible_become_method")
		v.fault(found.At, "dsbuild_sudo: false runs commands as the user who logs in", "ansible_become_method is %s: dsbuild supports only sudo", quoted(method.value))
		return optional[string]{}
	}
	if name, _, ok := v.get("ansible_become_password", "ansible_become_pass"); ok {
		v.remark("dsbuild ignores %s: it asks sudo's questions at the terminal", name)
	}
	return v.text(checkUser, "ansible_become_user").or(some("root"))
}

// quoted formats a value for a message.
func quoted(value any) string { return strconv.Quote(diagnostic.Clip(fmt.Sprint(value))) }

// isTrue reports whether Ansible reads the value as yes.
func isTrue(value any) bool {
	return slices.Contains([]string{"true", "yes", "on", "1", "t", "y"}, strings.ToLower(fmt.Sprint(value)))
}

// python returns Ansible's own interpreter, if a variable names one. Often that is not the
// interpreter of the training environment: dsbuild_python names that one.
func (v *varReader) python() optional[string] {
	const name = "ansible_python_interpreter"
	if _, _, own := v.get("dsbuild_python"); own {
		return optional[string]{} // own reads it with dsbuild's other variables
	}
	_, found, ok := v.get(name)
	if !ok {
		return optional[string]{}
	}
	text, isText := found.Value.(string)
	switch {
	case isText && slices.Contains([]string{"auto", "auto_silent", "auto_legacy", "auto_legacy_silent"}, text):
		return optional[string]{}
	case isText && ansible.IsTemplate(text):
		v.remark("%s is a template, which only Ansible can evaluate: dsbuild uses python3; name another one with dsbuild_python", name)
		return optional[string]{}
	case isText && envPython.MatchString(text):
		return some(envPython.FindStringSubmatch(text)[1])
	}
	return v.text(checkPython, name)
}

// envPython matches an interpreter that is started through env.
var envPython = regexp.MustCompile(`^/usr/bin/env\s+([A-Za-z0-9_.-]+)$`)

// ownVars returns the keys of a node for which Ansible has no variable. The variable is the key
// with dsbuild_ before it.
func ownVars() []string {
	return []string{"env", "envs", "exec_prefix", "proxy_jump", "python", "setup", "slots", "sudo"}
}

// own reads dsbuild's own variables. They have the meaning of a node's keys of the same name.
func (v *varReader) own(s *settings) {
	var names []string
	for name := range v.vars {
		if strings.HasPrefix(name, "dsbuild_") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		found := v.vars[name]
		key := strings.TrimPrefix(name, "dsbuild_")
		switch {
		case !slices.Contains(ownVars(), key):
			advice := "known: dsbuild_" + strings.Join(ownVars(), ", dsbuild_")
			if near := diagnostic.Nearest(key, ownVars()); near != "" {
				advice = "did you mean dsbuild_" + near + "?"
			}
			v.fault(found.At, advice, "unknown variable %s", quoted(name))
		case found.Value == nil:
		case holds(found.Value, func(value any) bool { return value == ansible.Secret{} }):
			v.fault(found.At, encryptedHint, "%s is encrypted", name)
		case holds(found.Value, func(value any) bool { text, _ := value.(string); return ansible.IsTemplate(text) }):
			v.fault(found.At, "write the value itself", "%s is a template, which only Ansible can evaluate, in a play", name)
		default:
			v.key(s, name, key, found)
		}
	}
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

// key reads one variable in the way dsbuild reads the key of a node.
func (v *varReader) key(s *settings, name, key string, found ansible.Var) {
	value := found.Value
	if text, ok := value.(string); ok && key == "exec_prefix" {
		words, err := ansible.SplitWords(text)
		if err != nil {
			v.fault(found.At, "", "%s: %v", name, err)
			return
		}
		list := []any{}
		for _, w := range words {
			list = append(list, w)
		}
		value = list
	}
	// The value has no position of its own: all problems are reported at the variable.
	inner := &reader{Reader: yamldoc.Reader{File: v.File}, dir: v.dir, home: v.home}
	for _, k := range keys() {
		if k.name == key {
			k.read(inner, s, nodeOf(value))
		}
	}
	for _, p := range inner.Problems {
		v.fault(found.At, p.Hint, "%s: %s", name, p.Message)
	}
}

// nodeOf converts a value to the YAML node that would hold it.
func nodeOf(value any) ast.Node {
	at := func(text string) *token.Token { return token.String(text, text, &token.Position{}) }
	switch v := value.(type) {
	case string:
		return ast.String(at(v))
	case int64:
		return ast.Integer(at(strconv.FormatInt(v, 10)))
	case float64:
		return ast.Float(at(strconv.FormatFloat(v, 'g', -1, 64)))
	case bool:
		return ast.Bool(at(strconv.FormatBool(v)))
	case []any:
		list := ast.Sequence(at("["), true)
		for _, one := range v {
			list.Values = append(list.Values, nodeOf(one))
		}
		return list
	case map[string]any:
		m := ast.Mapping(at("{"), true)
		for _, k := range slices.Sorted(maps.Keys(v)) {
			m.Values = append(m.Values, ast.MappingValue(at(":"), ast.String(at(k)), nodeOf(v[k])))
		}
		return m
	}
	return ast.Null(at("null"))
}

// groupsOf returns the groups of a host that --limit can name.
func (inv *Inventory) groupsOf(h ansible.Host, nodes map[string]bool) []string {
	var all []string
	for _, g := range h.Groups {
		switch {
		case nodes[g]:
			inv.Remarks = append(inv.Remarks, Remark{h.Name, fmt.Sprintf("dsbuild ignores the group %s: --limit %s means the node of that name", g, g)})
		case checkName(g) != nil:
			inv.Remarks = append(inv.Remarks, Remark{h.Name, fmt.Sprintf("dsbuild ignores the group %s: --limit supports only letters, digits, '.', '_' and '-'", quoted(g))})
		default:
			all = append(all, g)
		}
	}
	return all
}

// noteVarsFolders adds a remark for each folder of variables that only Ansible reads.
func (r *reader) noteVarsFolders(inv *Inventory) {
	for _, folder := range []string{"group_vars", "host_vars"} {
		if entries, err := os.ReadDir(filepath.Join(r.dir, folder)); err == nil && len(entries) > 0 {
			inv.Remarks = append(inv.Remarks, Remark{"", "dsbuild did not read " + folder + " beside the inventory: only ansible-inventory can read it"})
		}
	}
}
