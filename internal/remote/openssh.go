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
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// oldestMajor and oldestMinor are the oldest supported version of OpenSSH. It is the first with
// SSH_ASKPASS_REQUIRE.
const oldestMajor, oldestMinor = 8, 4

// ErrOpenSSH means that dsbuild cannot use the OpenSSH of this machine: it is missing or too old.
var ErrOpenSSH = errors.New("cannot use OpenSSH")

// versionLimit limits the time of ssh -V.
const versionLimit = 10 * time.Second

var versionForm = regexp.MustCompile(`OpenSSH_(?:for_Windows_)?(\d+)\.(\d+)[^\s,]*`)

// FindOpenSSH returns the path of an ssh that dsbuild can use. Its errors are ErrOpenSSH.
func FindOpenSSH(ctx context.Context) (string, error) {
	if runtime.GOOS == "windows" {
		return "", fault.WithHint(fmt.Errorf("%w: no shared connections on Windows (ControlMaster)", ErrOpenSSH),
			"use --ssh native, or run dsbuild in WSL")
	}
	program, err := exec.LookPath("ssh")
	if err != nil {
		return "", fault.WithHint(fmt.Errorf("%w: ssh not found on PATH", ErrOpenSSH),
			"install the OpenSSH client (Debian: openssh-client, Red Hat: openssh-clients), or use --ssh native")
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
		first, _, _ := strings.Cut(strings.TrimSpace(string(said)), "\n")
		first = clip(strings.TrimSpace(first), maxPrompt)
		err = fmt.Errorf("%w: unexpected output of %s -V: %s",
			ErrOpenSSH, program, cmp.Or(first, fmt.Sprint(err)))
		return "", fault.WithHint(err, "put the OpenSSH client first on PATH, or use --ssh native")
	}
	major, _ := strconv.Atoi(version[1])
	minor, _ := strconv.Atoi(version[2])
	if major < oldestMajor || major == oldestMajor && minor < oldestMinor {
		err = fmt.Errorf("%w: %s is %s, but %d.%d or newer is required",
			ErrOpenSSH, program, version[0], oldestMajor, oldestMinor)
		return "", fault.WithHint(err, "put a newer ssh first on PATH, or use --ssh native")
	}
	return program, nil
}

// longestParent limits the path of the folder for temporary files, in bytes. The path of a socket
// may have 104 bytes, and OpenSSH needs 17 of them for a temporary suffix.
const longestParent = 48

// privateFolder makes a folder for the sockets and logs of one connection.
func privateFolder() (string, error) {
	parent := os.TempDir()
	if len(parent) > longestParent {
		parent = "/tmp"
	}
	folder, err := os.MkdirTemp(parent, "dsbuild-ssh-") // mode 0700
	if err != nil {
		return "", fmt.Errorf("creating a directory for OpenSSH's sockets: %w", err)
	}
	return folder, nil
}

// process is a running ssh. Where the system supports it, the process ends with dsbuild.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed once it has ended
}

// startProcess starts cmd in its own session, so that the program cannot prompt at the terminal and
// Ctrl-C reaches only dsbuild, which ends the program in order.
func startProcess(cmd *exec.Cmd) (*process, error) {
	cmd.SysProcAttr = ownSession()
	cmd.WaitDelay = time.Second // a child process may hold its output open
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// Linux ends the process when the thread that started it ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			cmd.Wait() //nolint:errcheck // ProcessState holds the result
		}
		close(p.done)
	}()
	return p, <-started
}

func (p *process) kill() {
	p.cmd.Process.Kill() //nolint:errcheck // it may have ended
}

// Tail is a Writer that keeps the last Most bytes. Several goroutines may use it.
type Tail struct {
	Most int
	mu   sync.Mutex
	kept []byte
}

// Write implements io.Writer.
func (t *Tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, b...)
	if over := len(t.kept) - t.Most; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(b), nil
}

// String returns the kept bytes.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.kept)
}

// maxTail is the number of bytes kept of a master's output.
const maxTail = 4 << 10

// option returns the arguments for an option of ssh whose value is one word.
func option(key, value string) []string { return []string{"-o", key + "=" + configWord(value)} }

// configWord quotes a value as one word of ssh_config.
func configWord(s string) string {
	if !strings.ContainsAny(s, " \t\"'\\#") {
		return s
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

// fileWord escapes the percent signs of a file name, because ssh replaces tokens there.
func fileWord(f string) string { return strings.ReplaceAll(f, "%", "%%") }
