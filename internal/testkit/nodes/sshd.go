//go:build linux

package nodes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsbuild/dsbuild/internal/testkit/child"
	"github.com/dsbuild/dsbuild/internal/testkit/debian"
	"github.com/dsbuild/dsbuild/internal/testkit/proc"
	"github.com/dsbuild/dsbuild/internal/testkit/python"
)

// sshd is the server program of this machine, or an unpacked one in a folder of the user's.
type sshd struct {
	path         string
	root         string // the folder of the unpacked one; "" if installed
	major, minor int
}

// MissingSSHD names the package to install if there is no OpenSSH server and Up cannot get one;
// else "".
func MissingSSHD() string {
	if _, found := lookSSHD(); found || debian.CanUnpack() {
		return ""
	}
	return "openssh-server (sshd need not be started)"
}

// findSSHD finds the server. If it is missing, root installs Debian's package; another user
// unpacks it in the cache.
func findSSHD(ctx context.Context, log func(string)) (sshd, error) {
	s, found := lookSSHD()
	if !found {
		if err := getSSHD(ctx, log); err != nil {
			return sshd{}, err
		}
		if s, found = lookSSHD(); !found {
			return sshd{}, ErrNoSSHD
		}
	}
	// Old servers do not know -V, but each names its version in the error.
	out, _ := s.sshdCommand("-V").CombinedOutput() //nolint:errcheck // see above
	if m := regexp.MustCompile(`OpenSSH_(\d+)\.(\d+)`).FindSubmatch(out); m != nil {
		s.major, _ = strconv.Atoi(string(m[1])) //nolint:errcheck // digits
		s.minor, _ = strconv.Atoi(string(m[2])) //nolint:errcheck // digits
	}
	if os.Geteuid() == 0 {
		// An sshd that root runs confines its network part to this folder. The package's own
		// service would make it at boot.
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
			return s, err
		}
	}
	return s, nil
}

func getSSHD(ctx context.Context, log func(string)) error {
	if missing := MissingSSHD(); missing != "" {
		return fmt.Errorf("%w: install %s", ErrNoSSHD, missing)
	}
	if os.Geteuid() == 0 {
		log("installing openssh-server (apt-get) …")
		there := func() bool { _, found := lookSSHD(); return found }
		if err := debian.Ensure(ctx, there, "openssh-server"); err != nil {
			return fmt.Errorf("%w, and installing it failed: %w", ErrNoSSHD, err)
		}
		return nil
	}
	dir, err := unpackedSSHD()
	if err != nil {
		return err
	}
	log("no sshd here: unpacking openssh-server in " + dir + " (apt-get download) …")
	if err := debian.Unpack(ctx, dir, "openssh-server"); err != nil {
		return fmt.Errorf("%w (install openssh-server), and getting one without root failed: %w", ErrNoSSHD, err)
	}
	return nil
}

// unpackedSSHD is the folder in which Debian's package is unpacked.
func unpackedSSHD() (string, error) {
	cache, err := python.CacheDir()
	return filepath.Join(cache, "openssh"), err
}

func lookSSHD() (sshd, bool) {
	places := []sshd{{path: "/usr/sbin/sshd"}, {path: "/usr/local/sbin/sshd"}, {path: "/usr/bin/sshd"}}
	if dir, err := unpackedSSHD(); err == nil && os.Geteuid() != 0 {
		places = append(places, sshd{path: filepath.Join(dir, "usr/sbin/sshd"), root: dir})
	}
	for _, s := range places {
		if st, err := os.Stat(s.path); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return s, true
		}
	}
	return sshd{}, false
}

// sshdCommand runs the server; an unpacked one finds its libraries beside it.
func (s sshd) sshdCommand(args ...string) *exec.Cmd {
	cmd := exec.Command(s.path, args...)
	if s.root != "" {
		libs, _ := filepath.Glob(filepath.Join(s.root, "usr/lib/*-linux-gnu")) //nolint:errcheck // the pattern is good
		older, _ := filepath.Glob(filepath.Join(s.root, "lib/*-linux-gnu"))    //nolint:errcheck // likewise
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+strings.Join(append(libs, older...), ":"))
	}
	return cmd
}

// sshdConfig returns the lines of sshd_config that give an unpacked server the paths of its
// other programs.
func (s sshd) sshdConfig() []string {
	var lines []string
	for _, p := range [][2]string{{"SshdSessionPath", "sshd-session"}, {"SshdAuthPath", "sshd-auth"}} {
		if file := filepath.Join(s.root, "usr/lib/openssh", p[1]); s.root != "" && fileExists(file) {
			lines = append(lines, p[0]+" "+file)
		}
	}
	return lines
}

func fileExists(file string) bool { _, err := os.Stat(file); return err == nil }

func (n *Node) hostKeyFile() string { return filepath.Join(n.Dir, "host_ed25519") }
func (n *Node) configFile() string  { return filepath.Join(n.Dir, "sshd_config") }
func (n *Node) tmp() string         { return filepath.Join(n.Dir, "tmp") }

// Log is the server's log file.
func (n *Node) Log() string { return filepath.Join(n.Dir, "sshd.log") }

// marker is in the environment of everything a node runs, and nowhere else.
func (n *Node) marker() string { return "DSBUILD_TEST_NODE=" + n.Dir }

// serverConfig returns the text of the node's sshd_config. HOME by SetEnv replaces the
// account's. A forced command would replace it too, but turns signals off.
func (n *Node) serverConfig(s sshd, user string) string {
	var b strings.Builder
	line := func(format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		key, _, _ := strings.Cut(text, " ")
		for _, other := range n.configured {
			if theirs, _, _ := strings.Cut(other, " "); theirs == key {
				return
			}
		}
		b.WriteString(text + "\n")
	}
	if n.network == nil { // else the address comes after the server, with its link
		line("ListenAddress %s", n.Address)
	}
	line("Port %d", n.Port)
	line(`HostKey "%s"`, n.hostKeyFile())
	line("PidFile none")
	line(`AuthorizedKeysFile "%s"`, filepath.Join(n.Dir, "authorized_keys"))
	line("AllowUsers %s", user)
	line("AuthenticationMethods publickey")
	line("PermitRootLogin prohibit-password")
	line("StrictModes no")
	line("UsePAM no")
	line("PrintMotd no")
	line("PrintLastLog no")
	line("UseDNS no")
	line("LogLevel VERBOSE")
	line("MaxStartups 200:30:400")
	line("MaxSessions 64")
	line("Subsystem sftp %s", n.sftp(s))
	line(`SetEnv "HOME=%s" "TMPDIR=%s" "XDG_CACHE_HOME=%s" "%s"`, n.Home, n.tmp(), filepath.Join(n.Home, ".cache"), n.marker())
	if s.major > 9 || s.major == 9 && s.minor >= 8 {
		line("PerSourcePenalties no") // tests fail to log in on purpose
	}
	for _, other := range append(s.sshdConfig(), n.configured...) {
		b.WriteString(other + "\n")
	}
	return b.String()
}

// sftp is the command of the SFTP server, which starts in the node's home. OpenSSH before 9.5
// drops the quotes of this line. So cd, which reads HOME, enters a home with a space in its
// path.
func (n *Node) sftp(s sshd) string {
	if strings.Contains(n.Home, " ") {
		return "cd && exec " + filepath.Join("/", s.root, "usr/lib/openssh/sftp-server")
	}
	return "internal-sftp -d " + n.Home
}

// server is a running sshd of a node.
type server struct {
	process *os.Process
	ended   <-chan struct{}
}

// runServer starts a process that ends with this program in any case, in new namespaces.
func runServer(cmd *exec.Cmd, namespaces uintptr) (*server, error) {
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGTERM, Cloneflags: namespaces}
	started, ended := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // for the kernel, the end of this thread is the end of the program
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
			close(ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return &server{cmd.Process, ended}, nil
}

// Start runs node i, unless it runs already.
func (f *Fleet) Start(i int) error {
	n := f.Nodes[i]
	if n.Pid() != 0 {
		return nil
	}
	if err := stopServers(n); err != nil { // the leftovers of an earlier server
		return err
	}
	return f.startServer(i)
}

// startServer runs node i, on which nothing runs.
func (f *Fleet) startServer(i int) error {
	n := f.Nodes[i]
	if strings.ContainsAny(n.Dir, "\t\n\"'%") {
		return fmt.Errorf("%q: sshd_config cannot name such a folder", n.Dir)
	}
	if err := os.WriteFile(n.configFile(), []byte(n.serverConfig(f.sshd, f.User)), 0o600); err != nil {
		return err
	}
	if err := f.runNode(i); err != nil {
		return err
	}
	for deadline := time.Now().Add(time.Minute); !n.isListening(); time.Sleep(10 * time.Millisecond) {
		if n.Pid() == 0 || time.Now().After(deadline) {
			log, _ := os.ReadFile(n.Log()) //nolint:errcheck // only for an error message
			return errors.Join(fmt.Errorf("sshd does not listen on %s:%d: %s", n.Address, n.Port, child.LastLines(log, 1)), stopServers(n))
		}
	}
	return nil
}

// runNode starts the server of node i, in its network.
func (f *Fleet) runNode(i int) (err error) {
	n := f.Nodes[i]
	var namespaces uintptr
	if f.network != nil {
		namespaces = unix.CLONE_NEWNET
	}
	if n.server, err = runServer(f.sshd.sshdCommand("-D", "-f", n.configFile(), "-E", n.Log()), namespaces); err == nil && f.network != nil {
		err = f.network.connect(linkName(i), n.Address, n.server, f.network.forNode)
	}
	return err
}

func (n *Node) isListening() bool {
	dial := func(address string) (net.Conn, error) { return net.DialTimeout("tcp", address, 10*time.Second) }
	if n.network != nil {
		dial = n.network.controller.dial
	}
	c, err := dial(net.JoinHostPort(n.Address, strconv.Itoa(n.Port)))
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// Pid is the process of the node's sshd, or 0 if it does not run.
func (n *Node) Pid() int {
	if n.server == nil {
		return 0
	}
	select {
	case <-n.server.ended:
		return 0
	default:
		return n.server.process.Pid
	}
}

// stopServers ends the sshd of each node, its connections and all processes that they left running.
func stopServers(nodes ...*Node) error {
	// At least twice: while a process becomes another program, its environment does not identify
	// it.
	for quiet := 0; quiet < 2; quiet++ {
		pids := ownProcesses(nodes...)
		for _, pid := range pids {
			syscall.Kill(pid, syscall.SIGTERM) //nolint:errcheck // it may be gone
			syscall.Kill(pid, syscall.SIGCONT) //nolint:errcheck // the same
		}
		for _, pid := range pids {
			if err := waitOrKill(pid); err != nil {
				return err
			}
			quiet = 0
		}
		time.Sleep(10 * time.Millisecond)
	}
	for _, n := range nodes {
		n.awaitServer()
	}
	return nil
}

// awaitServer waits until Pid says that the server, whose process has ended, does not run. Else Start
// might take the node for one that runs.
func (n *Node) awaitServer() {
	if n.server != nil {
		<-n.server.ended
	}
}

// ownProcesses lists the listener of each node, its descendants, and all other processes with the node's
// mark in their environment. It stops the listeners: one that ended while it accepts a connection would leave a process
// that nothing identifies.
func ownProcesses(nodes ...*Node) []int {
	var pids []int
	var marks []string
	for _, n := range nodes {
		marks = append(marks, n.marker())
		if pid := n.Pid(); pid != 0 {
			syscall.Kill(pid, syscall.SIGSTOP) //nolint:errcheck // it may be gone
			pids = append(pids, pid)
		}
	}
	all := proc.All()
	for _, listener := range slices.Clone(pids) {
		for _, p := range proc.Descendants(all, listener) {
			pids = append(pids, p.PID)
		}
	}
	return append(pids, withEnv(all, marks...)...)
}

// waitOrKill waits for a process that was asked to end, and kills it if it does not.
func waitOrKill(pid int) error {
	if hasEnded(pid, 3*time.Second) {
		return nil
	}
	syscall.Kill(pid, syscall.SIGKILL) //nolint:errcheck // it may be gone
	if !hasEnded(pid, time.Minute) {
		return fmt.Errorf("process %d of a node does not end", pid)
	}
	return nil
}

// hasEnded waits for a process to end.
func hasEnded(pid int, limit time.Duration) bool {
	for deadline := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
		if p, err := proc.Read(proc.Root, pid); err != nil || p.Ended() {
			return true
		}
		if !time.Now().Before(deadline) {
			return false
		}
	}
}

// withEnv returns the processes that were started with one of these variables.
func withEnv(all []proc.Process, variables ...string) []int {
	var found []int
	for _, p := range all {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.PID))
		if err != nil || p.PID == os.Getpid() {
			continue
		}
		for v := range bytes.SplitSeq(b, []byte{0}) {
			if slices.Contains(variables, string(v)) {
				found = append(found, p.PID)
				break
			}
		}
	}
	return found
}

// Down stops every node and the processes on it. Files stay.
func (f *Fleet) Down() error {
	err := stopServers(f.Nodes...)
	if f.network != nil {
		err = errors.Join(err, f.network.close())
	}
	f.unlock()
	return err
}

// Stop ends node i, connections included.
func (f *Fleet) Stop(i int) error { return stopServers(f.Nodes[i]) }

// Kill ends node i and all processes on it at once, as a power cut does. Its disk stays as it
// is.
func (f *Fleet) Kill(i int) error {
	n := f.Nodes[i]
	for deadline, quiet := time.Now().Add(time.Minute), 0; quiet < 2; {
		pids := slices.DeleteFunc(ownProcesses(n), func(pid int) bool { return hasEnded(pid, 0) })
		for _, pid := range pids {
			syscall.Kill(pid, syscall.SIGKILL) //nolint:errcheck // it may be gone
		}
		if quiet++; len(pids) > 0 {
			quiet = 0
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v of %s do not end", pids, n.Name)
		}
	}
	n.awaitServer()
	return nil
}

// Busy reports whether node i runs anything besides its sshd and connections.
func (f *Fleet) Busy(i int) bool {
	return len(withEnv(proc.All(), f.Nodes[i].marker())) > 0
}

// Configure sets lines in the sshd_config of node i, in place of lines with the same keywords,
// and restarts it. Without lines it removes the earlier ones.
func (f *Fleet) Configure(i int, lines ...string) error {
	f.Nodes[i].configured = lines
	return errors.Join(f.Stop(i), f.Start(i))
}

// Rekey gives node i another host key, as a reinstalled node has one, and
// restarts it. known_hosts keeps the old key.
func (f *Fleet) Rekey(i int) error {
	n := f.Nodes[i]
	if err := stopServers(n); err != nil {
		return err
	}
	if err := newKey(n.hostKeyFile()); err != nil {
		return err
	}
	return f.Start(i)
}
