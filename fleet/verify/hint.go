package verify

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
	"github.com/dsbuild/dsbuild/wheel"
)

// rejection returns why a deploy would reject the node as it is, and a hint. It returns "" if it would not, as far as known.
func (n *nodeState) rejection() (why, hint string) {
	f, size, commands := *n.Facts, int64(0), map[string]string{}
	f.Taken = n.taken
	for _, name := range commandsOf(n.wheel) {
		commands[name] = "deepspeed"
	}
	if n.wheel != nil {
		size = n.wheel.Manifest.Size
	}
	if reasons, hint := f.Unchangeable(); len(reasons) > 0 {
		return strings.Join(lists.Map(reasons, nodeerr.Message.String), "; "), hint
	}
	for _, check := range []func() (nodeerr.Message, string){
		f.NoTorch,
		func() (nodeerr.Message, string) {
			if len(n.run.nodes) > 1 && node.CanBeShared(f.FileSystem) { // another node may install it
				return nodeerr.Message{}, ""
			}
			return f.NoPermission()
		},
		func() (nodeerr.Message, string) { return f.ForeignCommands(commands) },
		func() (nodeerr.Message, string) { return f.NoRoom(size) },
	} {
		if why, hint := check(); why.Text != "" {
			return why.Text, hint
		}
	}
	return "", ""
}

// commandsOf returns the commands that a wheel installs; if w is nil, the commands of DeepSpeed since 0.16.
func commandsOf(w *wheel.Loaded) []string {
	if w != nil {
		return w.Commands
	}
	return []string{
		"deepspeed", "deepspeed.pt", "ds", "ds_bench", "ds_elastic", "ds_io", "ds_nvme_tune", "ds_report", "ds_ssh", "dsr",
	}
}

// withWheel adds to the deploys in a hint the wheel that the node should run: the node's of --wheel, else the wheel
// that most nodes like it run, by dsbuild's notes, else the node's wheel by these. If there is none, the user must
// choose one. deploys reports whether there are any.
func (n *nodeState) withWheel(hint string) (expanded string, deploys bool) {
	expanded = fault.Expand(hint, func(c fault.Command) string {
		deploys = deploys || c.Do == "deploy"
		switch {
		case c.Do != "deploy" || c.Wheel != nil:
		case n.wheel != nil:
			c.Wheel = &fault.WheelFile{Path: n.wheel.Path}
		default:
			c.Wheel = &fault.WheelFile{}
			if w := n.run.usualWheel(n); w != nil {
				c.Wheel = &fault.WheelFile{Name: w.Wheel, SHA256: w.SHA256}
			}
		}
		return c.String()
	}, fault.Setting.String)
	return expanded, deploys
}

// alike is equal for nodes that can run one wheel: their Python and machine type.
func (n *nodeState) alike() string { return n.Facts.Tag + " " + n.Facts.Platform }

// usualWheel is the wheel that most nodes run that are like a node and do not differ. If none does, it is the node's own.
func (r *run) usualWheel(of *nodeState) *noted {
	counts := map[string]int{}
	var most *noted
	tie := false
	for _, n := range r.nodes {
		if n.Facts == nil || len(n.differs)+len(n.broken) > 0 || n.alike() != of.alike() {
			continue
		}
		w := n.notedWheel()
		if w == nil || !w.Same || len(n.installed.unfit(r.tables, *of.Facts)) > 0 {
			continue
		}
		counts[w.SHA256]++
		switch {
		case most == nil || counts[w.SHA256] > counts[most.SHA256]:
			most, tie = w, false
		case w.SHA256 != most.SHA256 && counts[w.SHA256] == counts[most.SHA256]:
			tie = true
		}
	}
	switch {
	case tie:
		return nil
	case most == nil:
		return of.notedWheel()
	}
	return most
}

// notedWheel is the wheel that dsbuild's note on the node names, if any. The note may say anything.
func (n *nodeState) notedWheel() *noted {
	if n.installed == nil || n.installed.Noted == nil {
		return nil
	}
	w := n.installed.Noted
	sum, err := hex.DecodeString(w.SHA256)
	if _, bad := wheel.ParseFileName(w.Wheel); bad != nil || err != nil || len(sum) != sha256.Size {
		return nil
	}
	return w
}
