package check

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/node"
)

// isLoopback reports whether an address leads nowhere else.
func isLoopback(address string) bool {
	a, err := netip.ParseAddr(address)
	return err == nil && a.IsLoopback()
}

// isAddress reports whether something that a node said may be passed on to others.
func isAddress(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}

// isVirtual reports whether an interface is known to lead to no other node.
func isVirtual(name string) bool {
	name = strings.TrimSpace(name)
	return name == "lo" || slices.ContainsFunc([]string{"docker", "virbr", "veth", "podman", "cni", "flannel", "cali", "lxcbr", "lxdbr"}, func(p string) bool { return strings.HasPrefix(name, p) })
}

// family is the addresses of IPv4, or those of IPv6 where there are no others: what a
// job takes.
func family(addresses []string) []string {
	four := slices.DeleteFunc(slices.Clone(addresses), func(a string) bool { return strings.Contains(a, ":") })
	if len(four) > 0 {
		slices.Sort(four)
		return slices.Compact(four)
	}
	six := slices.Sorted(slices.Values(addresses))
	return slices.Compact(six)
}

// several says that there are other nodes to be reached.
func (r *run) several() bool { return len(r.members) > 1 }

// names judges what the master's address stands for on each node, and the own name.
func (r *run) names(context.Context) {
	live := r.live()
	master := r.master()
	standsFor := func(m *member) (string, bool) {
		if m.seen.Master.OK == nil || len(m.seen.Master.OK.Addresses) == 0 {
			return "", false
		}
		return strings.Join(family(m.seen.Master.OK.Addresses), ", "), true
	}
	values := group(live, standsFor)
	has := r.addressesOfFirst()
	for _, m := range live {
		why := m.seen.Master.why()
		if why == "" {
			why = m.seen.Master.OK.Error
		}
		if why != "" {
			m.find(Names, Error, fmt.Sprintf("getent hosts %s there: /etc/hosts, /etc/resolv.conf; or name an address: --master", master), "the master's address %s is not known there: %s", master, why)
			continue
		}
		value, _ := standsFor(m)
		addresses := strings.Split(value, ", ")
		fix := fmt.Sprintf("getent hosts %s there, and put its line in /etc/hosts right", master)
		switch {
		case r.several() && slices.ContainsFunc(addresses, isLoopback):
			m.find(Names, Error, fix+": an address that other nodes reach", "the master's address %s is %s there, which is each node itself", master, value)
		case len(has) > 0 && !slices.ContainsFunc(addresses, func(a string) bool { return slices.Contains(has, a) || isLoopback(a) }):
			m.find(Names, Error, fix, "the master's address %s is %s there, which %s does not have (it has %s)", master, value, r.first().host.Name, strings.Join(has, ", "))
		case value != values[0].value:
			m.find(Names, Error, fix, "the master's address %s is %s there, where %d of %s have %s", master, value, len(values[0].members), count(len(live), "node"), values[0].value)
		}
		m.ownName(r.several())
	}
}

// addressesOfFirst are those that other nodes may reach the first by; none if not known.
func (r *run) addressesOfFirst() []string {
	f := r.first()
	if f.seen.Interfaces.OK == nil {
		return nil
	}
	var has []string
	for _, i := range *f.seen.Interfaces.OK {
		if !isLoopback(i.Address) && !slices.Contains(has, i.Address) {
			has = append(has, i.Address)
		}
	}
	return has
}

// ownName judges what a node's own name stands for: gloo tells the others that address,
// unless a variable names an interface.
func (m *member) ownName(several bool) {
	host := m.seen.Host.OK
	if !several || host == nil || m.variable("GLOO_SOCKET_IFNAME") != "" {
		return
	}
	const try = "put its address into /etc/hosts there, or name the interface: env: {GLOO_SOCKET_IFNAME: eth0} in the inventory"
	switch addresses := family(host.Addresses); {
	case len(addresses) == 0:
		m.find(Names, Error, try, "its own name %s is not known there (%s): gloo falls back to the loopback interface", host.Name, host.Error)
	case slices.ContainsFunc(addresses, isLoopback):
		m.find(Names, Error, try, "its own name %s is %s there: gloo would tell the others that address", host.Name, strings.Join(addresses, ", "))
	}
}

// variable is the value of a variable on a node; "" if it is not set.
func (m *member) variable(name string) string {
	if m.seen.Variables.OK == nil {
		return ""
	}
	return (*m.seen.Variables.OK)[name]
}

// interfaces finds by which way nodes reach the master, and the master the others.
func (r *run) interfaces(ctx context.Context) {
	live := r.live()
	masters := group(live, func(m *member) (string, bool) { // what most take the master for
		if m.seen.Master.OK == nil {
			return "", false
		}
		for _, a := range family(m.seen.Master.OK.Addresses) {
			if !isLoopback(a) || !r.several() {
				return a, true
			}
		}
		return "", false
	})
	if len(masters) == 0 {
		if has := r.addressesOfFirst(); len(has) > 0 {
			masters = []valued{{value: has[0]}}
		}
	}
	if len(masters) == 0 {
		r.note(Interface, "no node knows an address of the master")
		return
	}
	to := masters[0].value
	others := slices.DeleteFunc(slices.Clone(live), func(m *member) bool { return m == r.first() })
	r.routes(ctx, others, to)
	for _, m := range others { // the master, to one of the others
		if m.route != nil {
			to = m.route.Address
			break
		}
	}
	if r.first().status == OK {
		r.routes(ctx, []*member{r.first()}, to)
		if r.several() && r.first().route != nil && !isLoopback(masters[0].value) && slices.Contains(r.addressesOfFirst(), masters[0].value) {
			r.first().route.Address = masters[0].value
		}
	}
	r.judgeInterfaces()
}

// routes asks nodes for their way to an address.
func (r *run) routes(ctx context.Context, members []*member, to string) {
	r.all(ctx, Interface, members, askLimit, func(ctx context.Context, m *member) error {
		var got routed
		_, _, err := m.agent.ask(ctx, "route", map[string]any{"to": to}, &got)
		switch {
		case ctx.Err() != nil:
			return err
		case err == nil && !isAddress(got.Address):
			m.find(Interface, Error, "", "its own address is not understood: %q", got.Address)
		case err != nil:
			m.find(Interface, Error, "ip route get "+to+" there", "no way to the master at %s: %v", to, err)
		default:
			m.route = &got
		}
		return nil
	})
}

// judgeInterfaces judges the interfaces by which nodes reach each other.
func (r *run) judgeInterfaces() {
	routed := slices.DeleteFunc(r.live(), func(m *member) bool { return m.route == nil })
	names := group(routed, func(m *member) (string, bool) { return m.route.Interface, true })
	for _, m := range routed {
		name := m.route.Interface
		if r.several() && (isVirtual(name) || isLoopback(m.route.Address)) {
			m.find(Interface, Error, "ip route there; is the master's address one that only this node has?", "it reaches the master by %s (%s), which is no way to another node", name, m.route.Address)
			continue
		}
		said := m.judgeSaid(name, r.several())
		if !said && r.several() && len(names) > 1 && name != names[0].value {
			m.find(Interface, Warning, fmt.Sprintf("env: {NCCL_SOCKET_IFNAME: %[1]s, GLOO_SOCKET_IFNAME: %[1]s} for it in the inventory, and %[2]s for the others", name, names[0].value),
				"it reaches the master by %s, where %d of %s do by %s", name, len(names[0].members), count(len(routed), "node"), names[0].value)
		}
	}
}

// judgeSaid holds the variables that name an interface against those there are;
// whether there are such variables.
func (m *member) judgeSaid(name string, several bool) (said bool) {
	for _, variable := range []string{"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"} {
		value := m.variable(variable)
		if value == "" {
			continue
		}
		said = true
		if m.seen.Interfaces.OK == nil {
			continue
		}
		chosen := []string{}
		for _, i := range *m.seen.Interfaces.OK {
			if takes(variable, value, i.Name) && !slices.Contains(chosen, i.Name) {
				chosen = append(chosen, i.Name)
			}
		}
		switch {
		case len(chosen) == 0:
			m.find(Interface, Error, fmt.Sprintf("the way to the master is %s: %s=%s", name, variable, name), "%s=%s names no interface with an address that it has", variable, value)
		case several && !slices.ContainsFunc(chosen, func(c string) bool { return !isVirtual(c) }):
			m.find(Interface, Error, fmt.Sprintf("the way to the master is %s: %s=%s", name, variable, name), "%s=%s is no way to another node", variable, value)
		case !slices.Contains(chosen, name):
			m.find(Interface, Warning, fmt.Sprintf("the way to the master is %s", name), "%s=%s is not the interface by which it reaches the master (%s)", variable, value, name)
		}
	}
	return said
}

// takes reports whether a variable's value takes an interface: NCCL goes by beginnings of
// names, "=" before them by whole names, "^" leaves them out; gloo goes by whole names.
func takes(variable, value, name string) bool {
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

// listening is whether a port is free on a node.
type listening struct {
	Port   int    `json:"port"` // 0: it is not
	Error  string `json:"error"`
	Holder string `json:"holder"`
	Free   int    `json:"free"` // another one that is
}

// port looks whether the master's port is free. From then on the program there answers
// on it, so that the others find out whether they reach it.
func (r *run) port(ctx context.Context) {
	m := r.first()
	if m.status != OK || m.agent == nil {
		r.note(Port, "%s, the master, does not answer", m.host.Name)
		return
	}
	var got listening
	r.all(ctx, Port, []*member{m}, askLimit, func(ctx context.Context, m *member) error {
		_, _, err := m.agent.ask(ctx, "port", map[string]any{"port": r.opt.Port}, &got)
		return err
	})
	if m.status != OK || got.Port != 0 {
		return
	}
	by := ""
	if got.Holder != "" {
		by = ", by " + got.Holder
	}
	m.find(Port, Error, fmt.Sprintf("another job? ss -ltnp 'sport = :%d' there; or take another port: --port %d", r.opt.Port, got.Free), "the master's port %d is taken: %s%s", r.opt.Port, got.Error, by)
}

// dialled is what a node reached of its peers.
type dialled struct {
	Reached int       `json:"reached"`
	Failed  []unheard `json:"failed"`
}

// unheard is a peer that was not reached, and why: [index, why].
type unheard struct {
	at  int
	why string
}

// UnmarshalJSON implements json.Unmarshaler.
func (u *unheard) UnmarshalJSON(text []byte) error {
	return unmarshalPair(text, &u.at, &u.why)
}

const (
	dialWindow  = 64               // peers that a node calls at once
	dialLimit   = 3 * time.Second  // for a connection: its first packet is sent twice in that time, and who is not reached is called again
	answerLimit = 15 * time.Second // for the answer of one that is connected: the program there may have much to do
)

// network has every node call every other one, at a port of its own choice, and the
// master at its port too.
//
// Each node calls all others, N·(N-1) calls altogether, for nothing less finds a pair
// that is blocked. A node calls 64 at a time, beginning with the one behind itself, so
// that no node is called by all at once; a call is a connection and 32 KiB. With 500
// nodes that is 499 calls and 16 MB out and in for each, seconds in all, and the driver
// sends each a list of 30 KB.
func (r *run) network(ctx context.Context) {
	peers := slices.DeleteFunc(r.live(), func(m *member) bool { return m.route == nil || m.seen.Port < 1 || m.seen.Port > 65535 })
	if len(peers) < 2 {
		if r.several() {
			r.note(Network, "there are no two nodes with an address to call")
		}
		return
	}
	work := r.opt.Reporter.Step("connections between " + count(len(peers), "node"))
	defer work.End(ui.Done, "")
	got := make([]dialled, len(r.members))
	withPort := !r.first().has(Port) && !slices.Contains(r.opt.Skip, Port)
	// As long as if everybody were connected, and nobody answered, twice.
	limit := askLimit + 2*(dialLimit+answerLimit)*time.Duration(2+len(peers)/dialWindow)
	r.all(ctx, Network, peers, limit, func(ctx context.Context, m *member) error {
		_, _, err := m.agent.ask(ctx, "dial", map[string]any{"peers": r.calls(m, peers, withPort), "window": dialWindow, "limit_s": dialLimit.Seconds(), "answer_s": answerLimit.Seconds()}, &got[m.index])
		return err
	})
	answered := slices.DeleteFunc(slices.Clone(peers), func(m *member) bool { return m.status != OK })
	r.judgeCalls(answered, peers, got)
}

// masterPort marks the call at the master's port among those of a node.
const masterPort = 1 << 20

// calls are the peers of a node, as [index, address, port, word], beginning behind it.
func (r *run) calls(m *member, peers []*member, withPort bool) [][]any {
	at := slices.Index(peers, m)
	calls := [][]any{}
	for i := 1; i < len(peers); i++ {
		p := peers[(at+i)%len(peers)]
		calls = append(calls, []any{p.index, p.route.Address, p.seen.Port, p.word})
		if p == r.first() && withPort {
			calls = append(calls, []any{masterPort, p.route.Address, r.opt.Port, p.word})
		}
	}
	return calls
}

// judgeCalls names the nodes that nobody reaches, those that reach nobody, and pairs.
func (r *run) judgeCalls(callers, peers []*member, got []dialled) {
	const try = "a firewall or no route between them: NCCL and gloo connect all nodes with all, on ports that nobody knows before; let the nodes' network through, not one port"
	failed := map[int]map[int]string{} // by caller, by peer
	deaf := map[int]int{}              // by how many a peer was not reached
	for _, m := range callers {
		failed[m.index] = map[int]string{}
		for _, u := range got[m.index].Failed {
			called := u.at != m.index && slices.ContainsFunc(peers, func(p *member) bool { return p.index == u.at })
			if _, again := failed[m.index][u.at]; called && !again { // a node has one word about another
				failed[m.index][u.at] = u.why
				deaf[u.at]++
			}
		}
		r.pairs.Tried += len(peers) - 1
		r.pairs.Failed += len(failed[m.index])
	}
	for _, m := range peers {
		if n := deaf[m.index]; n > 1 && n == len(callers)-1 {
			m.find(Network, Error, try, "no other node reaches it at %s: they say: %s", m.route.Address, mostCommon(failed, m.index))
		}
	}
	for _, m := range callers {
		f := failed[m.index]
		if len(f) > 1 && len(f) == len(peers)-1 {
			m.find(Network, Error, try, "it reaches no other node: %v", node.Words(mostCommonOf(f)))
			continue
		}
		byReason := group(peers, func(p *member) (string, bool) {
			why, bad := f[p.index]
			return why, bad && !(deaf[p.index] > 1 && deaf[p.index] == len(callers)-1)
		})
		for _, v := range byReason {
			m.find(Network, Error, try, "it does not reach %s: %v", addressed(v.members), node.Words(v.value))
		}
		for _, u := range got[m.index].Failed {
			if u.at == masterPort && f[r.first().index] == "" {
				m.find(Network, Error, try, "it reaches the master %s, but not at its port %d: %v", r.first().host.Name, r.opt.Port, node.Words(u.why))
			}
		}
	}
}

// addressed names nodes; a single one with its address.
func addressed(members []*member) string {
	if len(members) == 1 {
		return members[0].host.Name + " at " + members[0].route.Address
	}
	names := make([]string, len(members))
	for i, m := range members {
		names[i] = m.host.Name
	}
	return foldNames(names)
}

// mostCommon is why a peer was not reached, in most cases.
func mostCommon(failed map[int]map[int]string, peer int) string {
	all := map[int]string{}
	for caller, f := range failed {
		if why, bad := f[peer]; bad {
			all[caller] = why
		}
	}
	return mostCommonOf(all)
}

func mostCommonOf(reasons map[int]string) string {
	times := map[string]int{}
	best := ""
	for _, why := range reasons {
		times[why]++
	}
	for why, n := range times {
		if best == "" || n > times[best] || n == times[best] && why < best {
			best = why
		}
	}
	return best
}

// loggedIn is what the first node says of logging in on others.
type loggedIn struct {
	PDSH   bool      `json:"pdsh"`
	Failed []unheard `json:"failed"`
}

// ssh has the first node log in on the others without a question, as DeepSpeed's
// launcher does by way of pdsh.
func (r *run) ssh(ctx context.Context) {
	m := r.first()
	if m.status != OK || m.agent == nil {
		r.note(SSH, "%s, from which to log in, does not answer", m.host.Name)
		return
	}
	to := [][]any{}
	for _, p := range r.members {
		to = append(to, []any{p.index, p.host.Address, p.host.Port, p.host.User})
	}
	var got loggedIn
	r.all(ctx, SSH, []*member{m}, askLimit+20*time.Second*time.Duration(1+len(to)/16), func(ctx context.Context, m *member) error {
		_, _, err := m.agent.ask(ctx, "ssh", map[string]any{"hosts": to}, &got)
		return err
	})
	if m.status != OK {
		return
	}
	if !got.PDSH {
		m.find(SSH, Error, "apt-get install pdsh there", "there is no pdsh, by which DeepSpeed's launcher starts its processes")
	}
	for _, u := range got.Failed {
		if u.at >= 0 && u.at < len(r.members) {
			p := r.members[u.at]
			p.find(SSH, Error, fmt.Sprintf("on %s: ssh-copy-id %s; and a line in ~/.ssh/known_hosts for it", m.host.Name, p.host.Address), "%s cannot log in there without a question: %s", m.host.Name, u.why)
		}
	}
}

// Skew is how far a node's clock is ahead of this machine's, and how sure that is.
type Skew struct {
	Seconds float64 `json:"seconds"`
	Bound   float64 `json:"bound"` // it may be off by so much: half of what an answer took
}

const (
	clockTries = 5
	// mostSkew is what clocks may differ: logs are still read side by side, and
	// file servers, tokens and make take it.
	mostSkew = 2.0
)

// clocks compares the nodes' clocks with this machine's.
func (r *run) clocks(ctx context.Context) {
	live := r.live()
	r.all(ctx, Clock, live, askLimit, func(ctx context.Context, m *member) error {
		for range clockTries {
			var got struct {
				Time float64 `json:"time"`
			}
			sent, came, err := m.agent.ask(ctx, "clock", nil, &got)
			if err != nil {
				return err
			}
			half := came.Sub(sent) / 2
			ours := float64(sent.Add(half).UnixNano()) / 1e9
			if s := (Skew{got.Time - ours, half.Seconds()}); m.skew == nil || s.Bound < m.skew.Bound {
				m.skew = &s
			}
		}
		return nil
	})
	r.judgeClocks()
}

// judgeClocks names the clocks that are off: against this machine's, or against most
// nodes where these agree with each other and not with this machine.
func (r *run) judgeClocks() {
	known := slices.DeleteFunc(r.live(), func(m *member) bool { return m.skew == nil })
	if len(known) == 0 {
		return
	}
	middle, whose := 0.0, "this machine's"
	all := make([]float64, len(known))
	for i, m := range known {
		all[i] = m.skew.Seconds
	}
	slices.Sort(all)
	if median := all[len(all)/2]; len(all) > 2 && (median > mostSkew || median < -mostSkew) {
		near := 0
		for _, s := range all {
			if s-median < mostSkew && median-s < mostSkew {
				near++
			}
		}
		if 2*near > len(all) {
			middle, whose = median, "most nodes'"
			r.opt.Reporter.Warn("the nodes' clocks are %s this machine's: it is the one that is off", apart(median))
		}
	}
	for _, m := range known {
		off := m.skew.Seconds - middle
		if off > mostSkew+m.skew.Bound || off < -mostSkew-m.skew.Bound {
			m.find(Clock, Error, "chronyc tracking, or timedatectl there: is its time kept by the network?", "its clock is %s %s (give or take %s)", apart(off), whose, ui.Duration(time.Duration(m.skew.Bound*float64(time.Second))))
		}
	}
}

// apart says how far a clock is off.
func apart(seconds float64) string {
	word := "ahead of"
	if seconds < 0 {
		seconds, word = -seconds, "behind"
	}
	if seconds > 48*3600 {
		return strconv.Itoa(int(seconds/86400)) + " days " + word
	}
	return ui.Duration(time.Duration(seconds*float64(time.Second))) + " " + word
}
