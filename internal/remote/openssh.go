package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/dsbuild/dsbuild/internal/hint"
)

// The oldest OpenSSH that asks for passwords by SSH_ASKPASS although it has a terminal
// (SSH_ASKPASS_REQUIRE).
const oldestMajor, oldestMinor = 8, 4

// ErrOpenSSH is an OpenSSH on this machine that cannot be used: missing, too old.
var ErrOpenSSH = errors.New("OpenSSH cannot be used")

// versionLimit is how long ssh may take to say its version.
const versionLimit = 10 * time.Second

var versionForm = regexp.MustCompile(`OpenSSH_(?:for_Windows_)?(\d+)\.(\d+)[^\s,]*`)

// FindOpenSSH returns the path of an ssh that can be a way to nodes. Its errors are
// ErrOpenSSH.
func FindOpenSSH(ctx context.Context) (string, error) {
	if runtime.GOOS == "windows" {
		return "", hint.With(fmt.Errorf("%w: on Windows it shares no connection among sessions (ControlMaster)", ErrOpenSSH), "use --ssh native, or run dsbuild in WSL")
	}
	program, err := exec.LookPath("ssh")
	if err != nil {
		return "", hint.With(fmt.Errorf("%w: there is no ssh on PATH", ErrOpenSSH), "install the OpenSSH client (Debian: openssh-client, Red Hat: openssh-clients), or use --ssh native")
	}
	limited, cancel := context.WithTimeout(ctx, versionLimit)
	defer cancel()
	cmd := exec.CommandContext(limited, program, "-V")
	cmd.WaitDelay = time.Second
	said, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	version := versionForm.FindStringSubmatch(string(said))
	if version == nil {
		return "", hint.With(fmt.Errorf("%w: %s -V does not name a version of OpenSSH: %s", ErrOpenSSH, program, cmp.Or(clip(firstLine(said), mostPrompt), fmt.Sprint(err))),
			"put the OpenSSH client first on PATH, or use --ssh native")
	}
	major, minor := number(version[1]), number(version[2])
	if major < oldestMajor || major == oldestMajor && minor < oldestMinor {
		return "", hint.With(fmt.Errorf("%w: %s is %s, and dsbuild needs OpenSSH %d.%d or newer", ErrOpenSSH, program, version[0], oldestMajor, oldestMinor),
			"put a newer ssh first on PATH, or use --ssh native")
	}
	return program, nil
}

func number(digits string) int {
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0 // more digits than a version has
	}
	return n
}

func firstLine(text []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	return strings.TrimSpace(line)
}

// longestParent is how long the path of the folder for temporary files may be: a socket's
// has 104 bytes at most, of which OpenSSH takes 17 for a while.
const longestParent = 48

// privateFolder makes a folder for the sockets and logs of one connection.
func privateFolder() (string, error) {
	parent := os.TempDir()
	if len(parent) > longestParent {
		parent = "/tmp"
	}
	folder, err := os.MkdirTemp(parent, "dsbuild-ssh-") // mode 0700
	if err != nil {
		return "", fmt.Errorf("making a folder for OpenSSH's sockets: %w", err)
	}
	return folder, nil
}

// process is an ssh that runs. It ends with dsbuild at the latest, where the system can
// see to that.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed once it has ended
}

// startProcess starts cmd in a session of its own: it must neither ask at the terminal
// nor be hit by Ctrl-C, which dsbuild brings to an orderly end.
func startProcess(cmd *exec.Cmd) (*process, error) {
	cmd.SysProcAttr = ownSession()
	cmd.WaitDelay = time.Second // what it has started may hold its output open
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// Linux ends the process with the thread that has started it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			cmd.Wait() //nolint:errcheck // ProcessState says how it ended
		}
		close(p.done)
	}()
	return p, <-started
}

func (p *process) hasEnded() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// code is its exit status, once it has ended; -1 is a signal.
func (p *process) code() int { return p.cmd.ProcessState.ExitCode() }

func (p *process) kill() {
	p.cmd.Process.Kill() //nolint:errcheck // it may have ended
}

// end has it end in an orderly way, within leaveLimit.
func (p *process) end() {
	p.cmd.Process.Signal(syscall.SIGTERM) //nolint:errcheck // it may have ended
	select {
	case <-p.done:
	case <-time.After(leaveLimit):
		p.kill()
		<-p.done
	}
}

// tail is a Writer that keeps the end of what is written.
type tail struct {
	mu   sync.Mutex
	text []byte
}

// mostTail is how much of it.
const mostTail = 4 << 10

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	t.text = t.text[max(0, len(t.text)-mostTail):]
	return len(b), nil
}

// String returns it.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}

// option is an option of ssh, whose value is one word.
func option(key, value string) []string { return []string{"-o", key + "=" + configWord(value)} }

// configWord writes a value as one word of ssh_config.
func configWord(s string) string {
	if !strings.ContainsAny(s, " \t\"'\\#") {
		return s
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

// fileWord writes the name of a file, in which ssh replaces tokens.
func fileWord(f string) string { return strings.ReplaceAll(f, "%", "%%") }
