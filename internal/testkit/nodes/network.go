//go:build linux

package nodes

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNoNetworks means that this machine does not let this program make networks for nodes.
var ErrNoNetworks = errors.New("no networks of their own for nodes here")

// MissingNetworks names the requirements of Options.Networks that this machine lacks; "" if it has
// all of them.
func MissingNetworks() string {
	if os.Geteuid() != 0 {
		return "root"
	}
	for _, p := range []string{"ip", "tc", "nsenter"} {
		if _, err := exec.LookPath(p); err != nil {
			return p + " (iproute2, util-linux)"
		}
	}
	return ""
}

// network joins the nodes of a fleet by a switch. The switch, the controller and each node have a
// network namespace of their own, each with one link to the switch. A namespace lasts as long as
// the processes in it, and its link with it, so nothing is left even if this program is killed.
type network struct {
	hub, controller        *server // processes that only keep a namespace
	forController, forNode Rate
}

// Rate is the speed of a link in each direction, in Mbit/s; 0: not limited.
type Rate int

// The controller's address and the port of all nodes, in networks of their own.
const (
	controllerAddress = "10.99.0.1"
	networkPort       = 2222
)

func nodeAddress(i int) string { return fmt.Sprintf("10.99.1.%d", i+1) }

// newNetwork makes the switch, and the namespace of the controller.
func newNetwork() (*network, error) {
	w := &network{}
	for _, p := range []**server{&w.hub, &w.controller} {
		cmd := exec.Command("sleep", "infinity")
		var err error
		if *p, err = runServer(cmd, unix.CLONE_NEWNET); err != nil {
			return nil, errors.Join(fmt.Errorf("%w: %w", ErrNoNetworks, err), w.close())
		}
	}
	if err := w.hub.inNetwork("ip link add br0 type bridge; ip link set br0 up"); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrNoNetworks, err), w.close())
	}
	if err := w.connect("controller", controllerAddress, w.controller, w.forController); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// close ends the switch and the controller's namespace.
func (w *network) close() error {
	var errs []error
	for _, s := range []*server{w.hub, w.controller} {
		if s != nil {
			errs = append(errs, s.process.Kill())
			<-s.ended
		}
	}
	return errors.Join(errs...)
}

// connect gives the namespace of a process an address and a link to the switch.
func (w *network) connect(link, address string, to *server, rate Rate) error {
	// The link of a node that was killed a moment ago may still be there. A node keeps its hardware
	// address, which others remember for half a minute.
	ip := net.ParseIP(address).To4()
	mac := net.HardwareAddr{2, 0, ip[0], ip[1], ip[2], ip[3]}
	err := w.hub.inNetwork("ip link delete $1 2>/dev/null || true; ip link add $1 type veth peer name eth0 netns $2; ip link set $1 master br0 up",
		link, strconv.Itoa(to.process.Pid))
	if err == nil {
		err = to.inNetwork("ip link set lo up; ip address add $1/16 dev eth0; ip link set eth0 address $2 up", address, mac.String())
	}
	if err == nil {
		err = w.shape(link, to, rate)
	}
	return err
}

// shape limits both directions of a link.
func (w *network) shape(link string, to *server, rate Rate) error {
	const script = "tc qdisc delete dev $1 root 2>/dev/null || true; [ $2 = 0 ] || tc qdisc add dev $1 root tbf rate $2mbit burst 64kb latency 100ms"
	mbit := strconv.Itoa(int(rate))
	return errors.Join(w.hub.inNetwork(script, link, mbit), to.inNetwork(script, "eth0", mbit))
}

// enter returns the words before a command that run it in the network of this process.
func (s *server) enter() []string {
	return []string{"nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", s.process.Pid)}
}

// inNetwork runs lines of a shell, each of which must succeed, in the network of this process.
func (s *server) inNetwork(script string, args ...string) error {
	script = "set -e\n" + strings.ReplaceAll(script, "; ", "\n")
	argv := append(append(s.enter(), "sh", "-c", script, "sh"), args...)
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// dial connects to an address in the network of this process. Only the thread that makes the socket
// enters that network, and it ends with the goroutine.
func (s *server) dial(address string) (net.Conn, error) {
	type result struct {
		c   net.Conn
		err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread()
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", s.process.Pid))
		if err != nil {
			done <- result{nil, err}
			return
		}
		defer ns.Close()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- result{nil, err}
			return
		}
		c, err := net.DialTimeout("tcp", address, 10*time.Second)
		done <- result{c, err}
	}()
	r := <-done
	return r.c, r.err
}

// Shape limits the link of the controller and that of each node. It needs Options.Networks.
func (f *Fleet) Shape(controller, node Rate) error {
	w := f.network
	w.forController, w.forNode = controller, node
	err := w.shape("controller", w.controller, controller)
	for i, n := range f.Nodes {
		if n.Pid() != 0 {
			err = errors.Join(err, w.shape(linkName(i), n.server, node))
		}
	}
	return err
}

func linkName(i int) string { return fmt.Sprint("node", i+1) }

// ControllerSent returns how many bytes the controller has sent to nodes, all protocols included. It needs
// Options.Networks.
func (f *Fleet) ControllerSent() (int64, error) {
	file := fmt.Sprintf("/proc/%d/net/dev", f.network.controller.process.Pid)
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 9 && fields[0] == "eth0:" {
			return strconv.ParseInt(fields[9], 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no eth0", file)
}

// EnterController returns the words before a command that run it in the controller's network. Without
// Options.Networks there are none: the controller is this machine.
func (f *Fleet) EnterController() []string {
	if f.network == nil {
		return nil
	}
	return f.network.controller.enter()
}
