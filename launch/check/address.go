package check

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
)

func isLoopback(address string) bool {
	a, err := netip.ParseAddr(address)
	return err == nil && a.IsLoopback()
}

// isAddress reports whether a node's text is an IP address that is safe to send to other
// nodes and to print in a hint. A zone is not, because it may be any text.
func isAddress(s string) bool {
	a, err := netip.ParseAddr(s)
	return err == nil && a.Zone() == node.PlainPath(a.Zone(), "")
}

// isVirtual reports whether an interface cannot lead to another node.
func isVirtual(name string) bool {
	name = strings.TrimSpace(name)
	prefixes := []string{"docker", "virbr", "veth", "podman", "cni", "flannel", "cali", "lxcbr", "lxdbr"}
	return name == "lo" || slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// preferIPv4 returns the IPv4 addresses, or without any the IPv6 addresses. A job
// chooses the same way.
func preferIPv4(addresses []string) []string {
	four := slices.DeleteFunc(slices.Clone(addresses), func(a string) bool { return strings.Contains(a, ":") })
	if len(four) > 0 {
		slices.Sort(four)
		return slices.Compact(four)
	}
	six := slices.Sorted(slices.Values(addresses))
	return slices.Compact(six)
}

// checkNames checks how each node resolves the master's address and its own name.
func (r *run) checkNames(context.Context) {
	live := r.liveMembers()
	master := r.masterAddress()
	standsFor := func(m *member) (string, bool) {
		if m.survey.Master.OK == nil || len(m.survey.Master.OK.Addresses) == 0 {
			return "", false
		}
		return strings.Join(preferIPv4(m.survey.Master.OK.Addresses), ", "), true
	}
	values := groupByValue(live, standsFor)
	has := r.firstMember().reachableAddresses()
	for _, m := range live {
		why := m.survey.Master.failureReason()
		if why == "" {
			why = m.survey.Master.OK.Error
			if why == "" && len(m.survey.Master.OK.Addresses) == 0 {
				why = "no address"
			}
		}
		if why != "" {
			try := fmt.Sprintf("run getent hosts %s on the node, check /etc/hosts and /etc/resolv.conf, or use an address: --master",
				master)
			m.addFinding(Names, Error, try, "cannot resolve the master's address %s: %s", master, why)
			continue
		}
		value, _ := standsFor(m)
		addresses := strings.Split(value, ", ")
		fix := fmt.Sprintf("run getent hosts %s on the node, and correct its line in /etc/hosts", master)
		switch {
		case r.hasNetwork() && slices.ContainsFunc(addresses, isLoopback):
			m.addFinding(Names, Error, fix+" to an address that other nodes can reach",
				"the master's address %s resolves to %s, which is the node itself", master, value)
		case len(has) > 0 && !slices.ContainsFunc(addresses, func(a string) bool {
			return slices.Contains(has, a) || isLoopback(a)
		}):
			m.addFinding(Names, Error, fix, "the master's address %s resolves to %s on this node, but %s has %[4]s",
				master, value, r.firstMember().Host.Name, strings.Join(has, ", "))
		case value != values[0].value:
			m.addFinding(Names, Error, fix, "the master's address %s resolves to %s on this node, but to %s on %s",
				master, value, values[0].value, values[0].of(len(live)))
		}
		m.ownName(r.hasNetwork())
	}
}

// reachableAddresses returns the addresses by which other nodes may reach the node, or nil
// if they are unknown.
func (m *member) reachableAddresses() []string {
	if m.survey.Interfaces.OK == nil {
		return nil
	}
	var all []string
	for _, i := range *m.survey.Interfaces.OK {
		if isAddress(i.Address) && !isLoopback(i.Address) && !slices.Contains(all, i.Address) {
			all = append(all, i.Address)
		}
	}
	return all
}

// ownName checks how a node resolves its own name. gloo announces that address to the others,
// unless a variable selects an interface.
func (m *member) ownName(several bool) {
	host := m.survey.Host.OK
	if !several || host == nil || m.variable("GLOO_SOCKET_IFNAME") != "" {
		return
	}
	const try = "add its address to /etc/hosts on the node, or set the interface in the inventory: env: {GLOO_SOCKET_IFNAME: eth0}"
	switch addresses := preferIPv4(host.Addresses); {
	case len(addresses) == 0:
		m.addFinding(Names, Error, try,
			"cannot resolve its own name %s (%s): Gloo falls back to the loopback interface",
			nodeerr.Own(host.Name), host.Error)
	case slices.ContainsFunc(addresses, isLoopback):
		m.addFinding(Names, Error, try, "own name %s resolves to %s, the address that Gloo would announce to the other nodes",
			nodeerr.Own(host.Name), strings.Join(addresses, ", "))
	}
}

// variable returns a variable's value on a node, or "" if it is not set.
func (m *member) variable(name string) string {
	if m.survey.Variables.OK == nil {
		return ""
	}
	return (*m.survey.Variables.OK)[name]
}

// checkInterfaces finds the interfaces between the nodes and the master.
func (r *run) checkInterfaces(ctx context.Context) {
	live := r.liveMembers()
	masters := groupByValue(live, r.masterSeenBy) // the address that most nodes resolve
	if len(masters) == 0 {
		if has := r.firstMember().reachableAddresses(); len(has) > 0 {
			masters = []valued{{value: has[0]}}
		}
	}
	if len(masters) == 0 {
		r.addNotChecked(Interface, "no node resolved the master's address")
		return
	}
	to := masters[0].value
	others := slices.DeleteFunc(slices.Clone(live), func(m *member) bool { return m == r.firstMember() })
	r.askRoutes(ctx, others, to)
	for _, m := range others { // the master, to one of the others
		if m.route != nil {
			to = m.route.Address
			break
		}
	}
	if r.firstMember().Status == report.OK {
		r.askRoutes(ctx, []*member{r.firstMember()}, to)
		if r.hasNetwork() && r.firstMember().route != nil && !isLoopback(masters[0].value) &&
			slices.Contains(r.firstMember().reachableAddresses(), masters[0].value) {
			r.firstMember().route.Address = masters[0].value
		}
	}
	r.judgeInterfaces()
}

// masterSeenBy returns the master's address as a node resolves it, if it is an address, because others get it.
func (r *run) masterSeenBy(m *member) (string, bool) {
	if m.survey.Master.OK == nil {
		return "", false
	}
	for _, address := range preferIPv4(m.survey.Master.OK.Addresses) {
		if isAddress(address) && (!isLoopback(address) || !r.hasNetwork()) {
			return address, true
		}
	}
	return "", false
}

// askRoutes asks nodes for their route to an address.
func (r *run) askRoutes(ctx context.Context, members []*member, to string) {
	r.askAll(ctx, Interface, members, askLimit, func(ctx context.Context, m *member) error {
		var got routed
		err := m.agent.Call(ctx, agent.Request{"do": "route", "to": to}, &got)
		switch {
		case ctx.Err() != nil:
			return err
		case err == nil && !isAddress(got.Address):
			m.addFinding(Interface, Error, "", "unexpected address of the node: %q", got.Address)
		case err != nil:
			m.addFinding(Interface, Error, "run on the node: ip route get "+to, "no route to the master at %s: %v", to, err)
		default:
			m.route = &got
		}
		return nil
	})
}

// judgeInterfaces checks the interfaces of the routes.
func (r *run) judgeInterfaces() {
	routed := slices.DeleteFunc(r.liveMembers(), func(m *member) bool { return m.route == nil })
	names := groupByValue(routed, func(m *member) (string, bool) { return m.route.Interface, true })
	for _, m := range routed {
		name := m.route.Interface
		if r.hasNetwork() && (isVirtual(name) || isLoopback(m.route.Address)) {
			m.addFinding(Interface, Error, "run ip route on the node, and check that no other node has the master's address",
				"reaches the master through %s (%s), which does not lead to other nodes",
				name, nodeerr.Own(m.route.Address))
			continue
		}
		said := m.judgeSaid(name, r.hasNetwork())
		if !said && r.hasNetwork() && len(names) > 1 && name != names[0].value {
			try := fmt.Sprintf("in the inventory, "+
				"set env: {NCCL_SOCKET_IFNAME: %[1]s, GLOO_SOCKET_IFNAME: %[1]s} for this node, and %[2]s for the others",
				interfaceInHint(name), interfaceInHint(names[0].value))
			m.addFinding(Interface, Warning, try, "reaches the master through %s, but %s through %s",
				name, names[0].of(len(routed)), names[0].value)
		}
	}
}

// interfaceInHint returns an interface's name that is safe for a hint, which a user may copy: the name
// comes from the node.
func interfaceInHint(name string) string { return node.PlainPath(name, "INTERFACE") }

// judgeSaid compares the variables that select an interface with the node's interfaces.
// It reports whether any is set.
func (m *member) judgeSaid(name string, several bool) (said bool) {
	for _, variable := range []string{"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"} {
		value := m.variable(variable)
		if value == "" {
			continue
		}
		said = true
		if m.survey.Interfaces.OK == nil {
			continue
		}
		chosen := []string{}
		for _, i := range *m.survey.Interfaces.OK {
			if matchesInterface(variable, value, i.Name) && !slices.Contains(chosen, i.Name) {
				chosen = append(chosen, i.Name)
			}
		}
		try := "the route to the master uses " + interfaceInHint(name)
		set := ": " + variable + "=" + interfaceInHint(name)
		switch {
		case len(chosen) == 0:
			m.addFinding(Interface, Error, try+set,
				"%s=%s is not an interface of this node with an address", variable, value)
		case several && !slices.ContainsFunc(chosen, func(c string) bool { return !isVirtual(c) }):
			m.addFinding(Interface, Error, try+set, "%s=%s does not lead to other nodes", variable, value)
		case !slices.Contains(chosen, name):
			m.addFinding(Interface, Warning, try,
				"%s=%s is not the interface of the route to the master (%s)", variable, value, name)
		}
	}
	return said
}

// matchesInterface reports whether a variable's value selects an interface. NCCL matches
// prefixes of names, whole names after "=", and excludes names after "^"; gloo matches
// whole names.
func matchesInterface(variable, value, name string) bool {
	if variable == "GLOO_SOCKET_IFNAME" {
		return slices.Contains(strings.Split(value, ","), name)
	}
	out := strings.HasPrefix(value, "^")
	value = strings.TrimPrefix(value, "^")
	whole := strings.HasPrefix(value, "=")
	for word := range strings.SplitSeq(strings.TrimPrefix(value, "="), ",") {
		if word == name || !whole && strings.HasPrefix(name, word) {
			return !out
		}
	}
	return out && name != "lo"
}
