// Package proc reads the table of processes.
package proc

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Root is the folder in which the kernel shows its processes.
const Root = "/proc"

// Process is an entry of the table.
type Process struct {
	PID, Parent int
	Name        string
	State       string        // a letter; see proc(5)
	CPU         time.Duration // its own, and that of ended children for which it has waited
	Start       string        // clock ticks since boot
}

func (p Process) String() string { return fmt.Sprintf("%d (%s)", p.PID, p.Name) }

// Ended reports whether the process has ended and only its entry in the table is left.
func (p Process) Ended() bool { return p.State == "Z" || p.State == "X" }

// Read reads the entry of a process below root.
func Read(root string, pid int) (Process, error) {
	text, err := os.ReadFile(filepath.Join(root, strconv.Itoa(pid), "stat"))
	if err != nil {
		return Process{}, err
	}
	return parse(string(text))
}

// All reads the table.
func All() []Process {
	entries, _ := os.ReadDir(Root) //nolint:errcheck // without it no process is seen
	var all []Process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue // not a process
		}
		if p, err := Read(Root, pid); err == nil { // else it has ended
			all = append(all, p)
		}
	}
	return all
}

// parse reads a stat file: pid (name) state parent …; the name may hold anything.
func parse(text string) (p Process, err error) {
	open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return p, fmt.Errorf("no entry of a process: %.100q", text)
	}
	f := strings.Fields(text[end+1:])
	if len(f) < 20 {
		return p, fmt.Errorf("no entry of a process: %.100q", text)
	}
	p.Name, p.State, p.Start = text[open+1:end], f[0], f[19]
	if _, err := fmt.Sscan(text[:open]+f[1], &p.PID, &p.Parent); err != nil {
		return p, err
	}
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every architecture that Go runs on
	for _, ticks := range f[11:15] {   // user and system, of itself and of its children
		n, err := strconv.ParseInt(ticks, 10, 64)
		if err != nil {
			return p, err
		}
		p.CPU += time.Duration(n) * tick
	}
	return p, nil
}

// Descendants returns the children of a process, their children, and so on.
func Descendants(all []Process, root int) []Process {
	children := map[int][]Process{}
	for _, p := range all {
		children[p.Parent] = append(children[p.Parent], p)
	}
	found := children[root]
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i].PID]...)
	}
	return found
}
