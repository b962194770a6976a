package check

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// listening is the state of a port on a node.
type listening struct {
	Port   int    `json:"port"` // 0: it is taken
	Error  string `json:"error"`
	Holder string `json:"holder"`
	Free   int    `json:"free"` // another port that is free
}

// checkPort checks that the master's port is free. The agent then answers on it, so that
// the other nodes can test it.
func (r *run) checkPort(ctx context.Context) {
	m := r.firstMember()
	if m.Status != report.OK || m.agent == nil {
		r.addNotChecked(Port, "%s, the master, did not answer", m.Host.Name)
		return
	}
	var got listening
	r.askAll(ctx, Port, []*member{m}, askLimit, func(ctx context.Context, m *member) error {
		return m.agent.Call(ctx, agent.Request{"do": "port", "port": r.opt.Port}, &got)
	})
	if m.Status != report.OK || got.Port != 0 {
		return
	}
	by := ""
	if got.Holder != "" {
		by = ", by " + got.Holder
	}
	try := fmt.Sprintf("check for another job with ss -ltnp 'sport = :%d' on the node, or use another port: --port %d",
		r.opt.Port, got.Free)
	m.addFinding(Port, Error, try, "master port %d in use: %s%s", r.opt.Port, got.Error, by)
}

// dialled is the result of a node's calls to its peers.
type dialled struct {
	Reached int          `json:"reached"`
	Failed  []failedCall `json:"failed"`
}

// failedCall is a failed call: [index of the peer, reason].
type failedCall struct {
	at  int
	why string
}

// UnmarshalJSON implements json.Unmarshaler.
func (u *failedCall) UnmarshalJSON(text []byte) error {
	return unmarshalPair(text, &u.at, &u.why)
}

const (
	dialWindow = 64 // peers that a node calls in parallel
	// dialLimit is enough for one retransmission of TCP's first packet. The agent retries once.
	dialLimit   = 3 * time.Second
	answerLimit = 15 * time.Second // for a peer's answer: its agent may be busy
)

// checkNetwork makes every node connect to every other node at the agent's port, and to the
// master also at the job's port.
//
// These are N·(N-1) calls: fewer would miss a blocked pair. A node makes 64 calls at a time,
// starting with its successor, so that the calls are spread over all nodes. Each call is a
// connection that transfers 32 KiB. With 500 nodes, each node makes 499 calls, which transfer 16 MB
// in each direction and take seconds; its list of peers has 30 KB.
func (r *run) checkNetwork(ctx context.Context) {
	peers := slices.DeleteFunc(r.liveMembers(), func(m *member) bool {
		return m.route == nil || m.survey.Port < 1 || m.survey.Port > 65535
	})
	if len(peers) < 2 {
		if r.hasPeers() {
			r.addNotChecked(Network, "fewer than two nodes have an address to connect to")
		}
		return
	}
	work := r.opt.Reporter.Step("connections between " + ui.Count(len(peers), "node"))
	defer work.End(ui.Done, "")
	got := make([]dialled, len(r.members))
	withPort := !r.firstMember().hasError(Port) && !slices.Contains(r.opt.Skip, Port)
	// The worst case: all calls connect and none gets an answer, twice.
	limit := askLimit + 2*(dialLimit+answerLimit)*time.Duration(2+len(peers)/dialWindow)
	r.askAll(ctx, Network, peers, limit, func(ctx context.Context, m *member) error {
		order := agent.Request{
			"do": "dial", "peers": r.listCalls(m, peers, withPort), "window": dialWindow,
			"limit_s": dialLimit.Seconds(), "answer_s": answerLimit.Seconds(),
		}
		return m.agent.Call(ctx, order, &got[m.index])
	})
	answered := slices.DeleteFunc(slices.Clone(peers), func(m *member) bool { return m.Status != report.OK })
	r.judgeCalls(answered, peers, got)
}

// masterPort marks the call to the master's port.
const masterPort = 1 << 20

// listCalls lists the calls of a node as [index, address, port, token], beginning with
// its successor.
func (r *run) listCalls(m *member, peers []*member, withPort bool) [][]any {
	at := slices.Index(peers, m)
	calls := [][]any{}
	for i := 1; i < len(peers); i++ {
		p := peers[(at+i)%len(peers)]
		calls = append(calls, []any{p.index, p.route.Address, p.survey.Port, p.token})
		if p == r.firstMember() && withPort {
			calls = append(calls, []any{masterPort, p.route.Address, r.opt.Port, p.token})
		}
	}
	return calls
}

// judgeCalls finds nodes that no other node reaches, nodes that reach no other node, and
// blocked pairs.
func (r *run) judgeCalls(callers, peers []*member, got []dialled) {
	const try = "open all ports between the nodes in firewalls, and check the routes: " +
		"NCCL and Gloo connect every two nodes, on random ports"
	failed := map[int]map[int]string{} // by caller, by peer
	failures := map[int]int{}          // by peer: the number of failed calls
	for _, m := range callers {
		failed[m.index] = map[int]string{}
		for _, u := range got[m.index].Failed {
			called := u.at != m.index && slices.ContainsFunc(peers, func(p *member) bool { return p.index == u.at })
			if _, again := failed[m.index][u.at]; called && !again { // only the first report about a peer counts
				failed[m.index][u.at] = u.why
				failures[u.at]++
			}
		}
		r.pairs.Tried += len(peers) - 1
		r.pairs.Failed += len(failed[m.index])
	}
	unreachable := func(m *member) bool { return failures[m.index] > 1 && failures[m.index] == len(callers)-1 }
	for _, m := range peers {
		if unreachable(m) {
			m.addFinding(Network, Error, try, "no other node can reach it at %s: %s",
				nodeerr.Own(m.route.Address), mostCommon(callers, func(c *member) string { return failed[c.index][m.index] }))
		}
	}
	for _, m := range callers {
		f := failed[m.index]
		if len(f) > 1 && len(f) == len(peers)-1 {
			why := mostCommon(peers, func(p *member) string { return f[p.index] })
			m.addFinding(Network, Error, try, "cannot reach any other node: %v", node.NewNodeError(why))
			continue
		}
		byReason := groupByValue(peers, func(p *member) (string, bool) {
			why, bad := f[p.index]
			return why, bad && !unreachable(p)
		})
		for _, v := range byReason {
			m.addFinding(Network, Error, try, "cannot reach %s: %v", nameWithAddress(v.members), node.NewNodeError(v.value))
		}
		for _, u := range got[m.index].Failed {
			if u.at == masterPort && f[r.firstMember().index] == "" {
				m.addFinding(Network, Error, try, "reaches the master %s, but not its port %d: %v",
					r.firstMember().Host.Name, r.opt.Port, node.NewNodeError(u.why))
			}
		}
	}
}

// nameWithAddress returns the nodes' names, and the address of a single node.
func nameWithAddress(members []*member) string {
	if len(members) == 1 {
		return members[0].Host.Name + " at " + members[0].route.Address
	}
	names := lists.Map(members, func(m *member) string { return m.Host.Name })
	return foldNames(names)
}

// mostCommon returns the most common reason, if any.
func mostCommon(members []*member, reason func(*member) string) string {
	groups := groupByValue(members, func(m *member) (string, bool) {
		why := reason(m)
		return why, why != ""
	})
	return append(groups, valued{})[0].value
}
