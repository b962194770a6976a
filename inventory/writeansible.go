package inventory

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/inventory/ansible"
)

// variable is a variable of an Ansible inventory. Its value is a string, an int, a list or a
// mapping.
type variable struct {
	name  string
	value any
}

// ansible writes an inventory in INI. It uses Ansible's variables where they exist, and dsbuild's
// own for the rest.
func (inv *Inventory) ansible(nodes []nodeEntry) (string, []Remark, error) {
	var lost []Remark
	known := inv.KnownHosts
	if strings.ContainsAny(known, " %\"'\\") {
		lost, known = append(lost, Remark{"", "known_hosts"}), ""
	}
	all := common(nodes)
	// One variable holds jump host and known hosts: both must be written at the same level.
	together, apart := known, ""
	if slices.ContainsFunc(nodes, func(n nodeEntry) bool { return n.ProxyJump != "" }) {
		together, apart = "", known
	}
	shared := all.variables(together)
	var out strings.Builder
	members := make(map[string][]string)
	var groups []string
	for _, n := range nodes {
		vars := n.variables(apart)
		if err := noTemplates(n.Hosts, vars); err != nil {
			return "", nil, err
		}
		out.WriteString(n.Hosts)
		for _, v := range vars {
			out.WriteString(" " + v.name + "=" + ansible.Quote(ansible.Literal(v.value)))
		}
		out.WriteString("\n")
		for _, g := range n.Groups {
			if g == "all" || g == "ungrouped" {
				lost = append(lost, Remark{n.Hosts, "groups: " + g + ", a reserved name in Ansible"})
				continue
			}
			if members[g] == nil {
				groups = append(groups, g)
			}
			members[g] = append(members[g], n.Hosts)
		}
	}
	for _, g := range groups {
		fmt.Fprintf(&out, "\n[%s]\n%s\n", g, strings.Join(members[g], "\n"))
	}
	if err := noTemplates("", shared); err != nil {
		return "", nil, err
	}
	if len(shared) > 0 {
		out.WriteString("\n[all:vars]\n")
	}
	for _, v := range shared {
		fmt.Fprintf(&out, "%s=%s\n", v.name, ansible.Literal(v.value))
	}
	return out.String(), lost, nil
}

// sshArgs is the variable for options of ssh that have no variable of their own.
const sshArgs = "ansible_ssh_common_args"

func sshArguments(jump, known string) string {
	var words []string
	if jump != "" {
		words = append(words, "-o ProxyJump="+jump)
	}
	if known != "" {
		words = append(words, "-o UserKnownHostsFile="+known)
	}
	return strings.Join(words, " ")
}

// variables returns the settings of a node as variables of Ansible and dsbuild's own.
func (n nodeEntry) variables(known string) []variable {
	var all []variable
	add := func(name string, value any, said bool) {
		if said {
			all = append(all, variable{name, value})
		}
	}
	add("ansible_host", n.Address, n.Address != "")
	add("ansible_port", n.Port, n.Port != 0)
	add("ansible_user", n.User, n.User != "")
	add("ansible_become", "true", n.Sudo != "")
	add("ansible_become_user", n.Sudo, n.Sudo != "" && n.Sudo != "root")
	add("ansible_ssh_private_key_file", n.IdentityFile, n.IdentityFile != "")
	args := sshArguments(strings.ReplaceAll(n.ProxyJump, " ", ""), known)
	add(sshArgs, args, args != "")
	add("dsbuild_python", n.Python, n.Python != "")
	add("dsbuild_env", mappingOf(n.Env), len(n.Env) > 0)
	add("dsbuild_setup", n.Setup, n.Setup != "")
	add("dsbuild_exec_prefix", listOf(n.ExecPrefix), len(n.ExecPrefix) > 0)
	add("dsbuild_slots", n.Slots, n.Slots != 0)
	var envs []any
	for _, e := range n.Envs {
		envs = append(envs, e.mapping())
	}
	add("dsbuild_envs", envs, len(envs) > 0)
	return all
}

// mapping returns an environment as the value of a variable.
func (e envEntry) mapping() map[string]any {
	all := map[string]any{"name": e.Name}
	for key, text := range map[string]string{"user": e.User, "sudo": e.Sudo, "identity_file": e.IdentityFile, "python": e.Python, "setup": e.Setup} {
		if text != "" {
			all[key] = text
		}
	}
	if len(e.Env) > 0 {
		all["env"] = mappingOf(e.Env)
	}
	if len(e.ExecPrefix) > 0 {
		all["exec_prefix"] = listOf(e.ExecPrefix)
	}
	return all
}

func mappingOf(m map[string]string) map[string]any {
	all := make(map[string]any, len(m))
	for k, v := range m {
		all[k] = v
	}
	return all
}

func listOf(words []string) []any {
	all := make([]any, len(words))
	for i, w := range words {
		all[i] = w
	}
	return all
}

// noTemplates refuses values that Ansible would evaluate.
func noTemplates(node string, vars []variable) error {
	for _, v := range vars {
		if !holds(v.value, func(value any) bool { text, _ := value.(string); return ansible.IsTemplate(text) }) {
			continue
		}
		if node != "" {
			node += ": "
		}
		return hint.Coded(hint.With(fmt.Errorf("%s%s would contain {{ or {%%, which Ansible reads as a template", node, v.name), "put it into a script on the node, and name the script"), 2)
	}
	return nil
}
