package slurm

import (
	"bufio"
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
)

//go:embed hold.sh
var hold string

// broadcast brings one file to many nodes of an allocation. sbcast writes it to each node's own
// disk, and the node's upload copies it from there.
type broadcast struct {
	path  string
	nodes []string
	ready chan struct{} // closed once the file is there, or dsbuild has given up
	stop  context.CancelFunc
	gone  chan struct{} // closed once the nodes have removed the file
	there map[string]bool
}

const (
	// broadcastTries is the number of broadcasts of a file. The second try leaves out the nodes that had
	// no room. Those get the file one by one, and that upload reports the reason.
	broadcastTries = 2
	// broadcastSpare is the disk space that must stay free on a node besides the file, in bytes.
	broadcastSpare = 64 << 20
	// broadcastTimeout is the time a node may take for a block of a file, in seconds.
	broadcastTimeout = 60
	// holdLimit is the time the nodes may take to report that they are ready for a file.
	holdLimit = time.Minute
	// tmp is on a node's own disk, or in its memory.
	tmp = "/tmp"
)

// brought broadcasts a file to all nodes it was announced for, or waits for a broadcast under way.
// It returns the file's path on this node, or "" if the file is not there.
func (d *Dialer) brought(ctx context.Context, a *allocation, node string, up remote.Upload) (string, error) {
	s, err := a.broadcastFor(node, d.announcedFor(up.SHA256), up)
	if s == nil || err != nil {
		return "", err
	}
	select {
	case <-s.ready:
	case <-a.ended:
		return "", a.lost("while sending a file")
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if !s.there[node] {
		return "", nil
	}
	return s.path, nil
}

// announcedFor returns the nodes for which a file was announced.
func (d *Dialer) announcedFor(sha256 string) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.announced[sha256])
}

// broadcastFor returns the broadcast that includes a node. The first node that wants the file
// starts one for all announced nodes that no earlier broadcast includes. broadcastFor returns nil
// if that would be a single node.
func (a *allocation) broadcastFor(node string, announced []string, up remote.Upload) (*broadcast, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.broadcasts == nil { // the job is about to end
		return nil, nil
	}
	nodes := slices.DeleteFunc(slices.Clone(a.nodes), func(n string) bool { return !slices.Contains(announced, n) })
	for _, s := range a.broadcasts[up.SHA256] {
		if slices.Contains(s.nodes, node) {
			return s, nil
		}
		nodes = slices.DeleteFunc(nodes, func(n string) bool { return slices.Contains(s.nodes, n) })
	}
	if len(nodes) < 2 || !slices.Contains(nodes, node) {
		return nil, nil
	}
	local, err := up.Open()
	if err != nil {
		return nil, err
	}
	file, ok := local.(*os.File)
	if !ok { // sbcast opens the file by its name
		return nil, local.Close()
	}
	s := &broadcast{nodes: nodes, ready: make(chan struct{}), gone: make(chan struct{}), there: make(map[string]bool)}
	var lasting context.Context
	lasting, s.stop = context.WithCancel(context.Background())
	a.broadcasts[up.SHA256] = append(a.broadcasts[up.SHA256], s)
	// The broadcast has a context of its own: if the first caller gives up, the other nodes still
	// get the file.
	go func() {
		defer file.Close()
		s.run(lasting, a, file, up.Size)
	}()
	return s, nil
}

// endBroadcasts ends the broadcasts and waits until the nodes have removed the files.
func (a *allocation) endBroadcasts() {
	a.mu.Lock()
	all := slices.Concat(slices.Collect(maps.Values(a.broadcasts))...)
	a.broadcasts = nil
	a.mu.Unlock()
	for _, s := range all {
		s.stop()
	}
	for _, s := range all {
		<-s.gone
	}
}

// run broadcasts the file and keeps it on the nodes until ctx or the job ends.
func (s *broadcast) run(ctx context.Context, a *allocation, file *os.File, size int64) {
	defer close(s.gone)
	left := s.nodes
	for range broadcastTries {
		if len(left) < 2 || ctx.Err() != nil || a.over() {
			break
		}
		var held *holder
		if held, left = s.bring(ctx, a, left, file, size); held == nil {
			continue
		}
		s.path = path.Join(held.folder, "file")
		for _, n := range left {
			s.there[n] = true
		}
		close(s.ready)
		select {
		case <-ctx.Done():
		case <-a.ended:
		}
		held.end()
		return
	}
	close(s.ready)
}

// bring makes one try. On failure it returns the nodes for the next try.
func (s *broadcast) bring(ctx context.Context, a *allocation, nodes []string, file *os.File, size int64) (*holder, []string) {
	h, err := a.hold(ctx, nodes)
	if err != nil {
		return nil, nil
	}
	able := slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return h.free[n] < size+broadcastSpare })
	if len(able) == len(nodes) {
		name, err := filepath.Abs(file.Name())
		if err == nil {
			_, _, err = Program{Name: "sbcast", Args: []string{"--jobid=" + a.job + "." + h.step, "--timeout=" + strconv.Itoa(broadcastTimeout), name, path.Join(h.folder, "file")}}.Output(ctx)
		}
		if err == nil {
			return h, nodes
		}
		able = nil // each node gets the file by itself, and that upload reports the reason
	}
	h.end()
	return nil, able
}

// holder is a step on several nodes that keeps a folder on each. The step tells sbcast the nodes.
// It removes the folders when it ends, however this program ends.
type holder struct {
	alloc  *allocation
	nodes  []string
	cmd    *exec.Cmd
	input  io.Closer
	folder string
	step   string
	free   map[string]int64 // free bytes on each node that has the folder
	ended  chan struct{}
}

// heldLine matches the line that hold.sh prints on each node.
var heldLine = regexp.MustCompile(`^dsbuild-folder (\S+) (\d+) (\d+)$`)

// hold makes the folders. A node that does not report its folder has no entry in free, and so
// counts as full.
func (a *allocation) hold(ctx context.Context, nodes []string) (*holder, error) {
	h := &holder{alloc: a, nodes: nodes, folder: path.Join(tmp, ".dsbuild-"+rand.Text()[:16]), free: make(map[string]int64), ended: make(chan struct{})}
	args := a.srun(ui.FoldNames(nodes), len(nodes), "--input=all", "--wait=0", "--kill-on-bad-exit=0", "/bin/sh", "-c", hold, "sh", h.folder)
	h.cmd = exec.Command("srun", args...)
	h.cmd.Env, h.cmd.WaitDelay = Environ(os.Environ()), 2*time.Second
	detach(h.cmd)
	input, err := h.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	h.input = input
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	h.cmd.Stdout = w
	err = h.cmd.Start()
	w.Close()
	if err != nil {
		r.Close()
		return nil, err
	}
	go func() {
		h.cmd.Wait() //nolint:errcheck // its output decides
		close(h.ended)
	}()
	stop := context.AfterFunc(ctx, func() { r.SetReadDeadline(time.Now()) }) //nolint:errcheck // the read ends later then
	defer stop()
	r.SetReadDeadline(time.Now().Add(holdLimit)) //nolint:errcheck // a pipe has deadlines
	h.listen(r, len(nodes))
	go func() {
		defer r.Close()
		r.SetReadDeadline(time.Time{}) //nolint:errcheck // likewise
		io.Copy(io.Discard, r)         //nolint:errcheck // the rest of the output does not matter
	}()
	if len(h.free) == 0 {
		h.end()
		return nil, errors.New("no node answers")
	}
	return h, nil
}

// listen reads the reports of the nodes until all have come or the read ends.
func (h *holder) listen(r io.Reader, nodes int) {
	lines := bufio.NewScanner(r)
	for len(h.free) < nodes && lines.Scan() {
		if m := heldLine.FindStringSubmatch(strings.TrimSpace(lines.Text())); m != nil {
			kilobytes, err := strconv.ParseInt(m[3], 10, 64)
			if err == nil {
				h.step, h.free[m[1]] = m[2], kilobytes<<10
			}
		}
	}
}

// end makes the nodes remove the folders, and waits for that.
func (h *holder) end() {
	if closed(h.ended) { // the step was killed and could not remove them
		h.sweep()
		return
	}
	h.input.Close() //nolint:errcheck // the step ends in any case
	select {
	case <-h.ended:
	case <-time.After(killGrace):
		h.cmd.Process.Signal(endNow) //nolint:errcheck // the step may have ended
		<-h.ended
	}
}

// sweep removes the folders in a separate step, if the job still exists.
func (h *holder) sweep() {
	if h.alloc.over() || len(h.free) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), killGrace)
	defer cancel()
	args := h.alloc.srun(ui.FoldNames(h.nodes), len(h.nodes), "--input=none", "/bin/rm", "-rf", h.folder)
	Program{Name: "srun", Args: args}.Output(ctx) //nolint:errcheck // a failed node has lost the folder
}
