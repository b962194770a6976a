package remote

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
)

// masterAnswerLimit is the time in which a user's master, and the node behind it, must answer.
const masterAnswerLimit = 5 * time.Second

// dialOpenSSH connects to a resolved target through OpenSSH. It calls itself for jump hosts.
func (d *SSH) dialOpenSSH(ctx context.Context, t Target) (*sshConn, error) {
	program, err := d.openSSH()
	if err != nil {
		return nil, err
	}
	if c := d.dialUserMaster(ctx, program, t); c != nil {
		return c, nil
	}
	jump, release, err := d.jumpTo(ctx, t, "openssh ", d.dialOpenSSH)
	if err != nil {
		return nil, err
	}
	var behind *master
	if jump != nil {
		behind = jump.master
	}
	c, err := d.connect(ctx, t, func(clock *deadline) (*sshConn, error) { return d.startMaster(clock, program, t, behind) })
	if err != nil {
		release()
		return nil, err
	}
	c.release = release
	return c, nil
}

// dialUserMaster opens a connection through an OpenSSH master that the user started. It returns nil if there
// is none, or if it or the node behind it does not answer. That OpenSSH has checked the host key and logged in,
// as its own configuration demanded; t.KnownHosts has no effect.
func (d *SSH) dialUserMaster(ctx context.Context, program string, t Target) *sshConn {
	for _, path := range t.masters() {
		open, _ := d.sessions.LoadOrStore(path, new(atomic.Int64))
		m := &master{ssh: program, host: t.Address, socket: path, open: open.(*atomic.Int64)}
		if c, err := m.ride(ctx, t); err == nil {
			go c.keepAlive(d.opt.KeepAlive, d.opt.KeepAliveMax)
			return c
		}
	}
	return nil
}

// readyEvery is the interval of the check for a new master's socket, which shows that the master is
// ready.
const readyEvery = 5 * time.Millisecond

// startMaster starts a master for t, through jump if that is set, and connects through it once it has logged in.
func (d *SSH) startMaster(clock *deadline, program string, t Target, jump *master) (*sshConn, error) {
	check, err := d.hostKeys.checker(t)
	if err != nil {
		return nil, err
	}
	folder, err := privateFolder()
	if err != nil {
		return nil, err
	}
	a := &attempt{dialer: d, target: t, jump: jump, check: check, folder: folder, stderr: Tail{Most: maxTail}}
	c, err := a.start(clock, program)
	if err != nil {
		os.RemoveAll(folder) //nolint:errcheck // nothing in it is a secret
		return nil, err
	}
	return c, nil
}

// start starts the master, waits until it has logged in, and connects through it.
func (a *attempt) start(clock *deadline, program string) (*sshConn, error) {
	d, t, socket := a.dialer, a.target, filepath.Join(a.folder, "master")
	asking, stop := context.WithCancelCause(clock)
	defer stop(nil)
	a.login = &opensshLogin{
		login: login{target: t, keys: &keySet{barred: !t.allows(byKey)}, answers: d.opt.Answers, ctx: asking, clock: clock},
		log:   masterLog(a.folder),
		tell:  d.opt.Note,
		stop:  stop,
		by:    map[string]*secretTrial{},
	}
	cmd := exec.Command(program, a.args(socket)...) //nolint:noctx // the process outlives the attempt
	cmd.Env = os.Environ()
	cmd.Stderr = &a.stderr
	if d.attendedByAskpass(t) {
		asks := filepath.Join(a.folder, "ask")
		end, err := serveAskpass(asks, a.login.answer)
		if err != nil {
			return nil, err
		}
		defer end()
		cmd.Env = append(cmd.Env, askpassSocket+"="+asks, "SSH_ASKPASS="+d.opt.Askpass, "SSH_ASKPASS_REQUIRE=force")
	}
	p, err := startProcess(cmd)
	switch {
	case tooManyFiles(err):
		return nil, filesError(t, err)
	case err != nil:
		return nil, nodeerr.Errorf("%w to %s: starting ssh: %w", ErrDial, nodeerr.Own(hostPort(t)), err)
	}
	m := &master{
		ssh: program, host: t.Address, socket: socket, process: p, folder: a.folder,
		silence: d.opt.KeepAlive * time.Duration(d.opt.KeepAliveMax),
	}
	var c *sshConn
	err = a.wait(asking, p, socket, stop)
	if err == nil {
		c, err = m.connect(clock, t)
	}
	if err != nil {
		p.kill()
		<-p.done
		if tooManyFiles(err) {
			err = filesError(t, err)
		} else {
			err = a.explain(clock)
		}
	}
	a.login.settle(err)
	return c, err
}

// wait waits until the master is ready, has ended, or must end.
func (a *attempt) wait(asking context.Context, p *process, socket string, stop context.CancelCauseFunc) error {
	tick := time.NewTicker(readyEvery)
	defer tick.Stop()
	for {
		select {
		case <-p.done:
			stop(errClosedByNode) // closes open prompts
			return errClosedByNode
		case <-asking.Done():
			return context.Cause(asking)
		case <-tick.C:
			if _, err := os.Lstat(socket); err == nil {
				return nil
			}
		}
	}
}

// attendedByAskpass reports whether the user can be prompted for ssh.
func (d *SSH) attendedByAskpass(t Target) bool {
	return d.opt.Askpass != "" && d.opt.Answers.attended(t)
}

// attempt is a login by OpenSSH under way.
type attempt struct {
	dialer *SSH
	target Target
	jump   *master // of the last jump host; nil without one
	check  *hostKeyCheck
	login  *opensshLogin
	folder string // private
	stderr Tail   // other output, such as a ProxyCommand's
}

// seconds rounds a time up to whole seconds, as ssh takes it.
func seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

var yesNo = map[bool]string{true: "yes", false: "no"} // flags for ssh

// args returns the options of a master. The settings that dsbuild resolved override the
// configuration. ssh applies the rest of the configuration itself.
func (a *attempt) args(socket string) []string {
	t, opt := a.target, a.dialer.opt
	args := append(a.dialer.config.flags(), "-M", "-N", "-T", "-S", socket, "-E", masterLog(a.folder))
	add := func(key, value string) { args = append(args, option(key, value)...) }
	add("LogLevel", "DEBUG1")
	for _, key := range []string{
		"ControlPersist", "ForwardAgent", "ForwardX11", "PermitLocalCommand",
		"UpdateHostKeys", "VerifyHostKeyDNS", "NoHostAuthenticationForLocalhost", "Tunnel", "AddKeysToAgent", "VisualHostKey",
	} {
		add(key, "no")
	}
	for _, off := range t.switchOff {
		args = append(args, "-o", off)
	}
	add("FingerprintHash", "sha256")
	add("ClearAllForwardings", "yes")
	add("RemoteCommand", "none")
	every := seconds(opt.KeepAlive)
	add("ServerAliveInterval", strconv.Itoa(every))
	add("ServerAliveCountMax", strconv.Itoa(max(1, seconds(opt.KeepAlive*time.Duration(opt.KeepAliveMax))/every)))
	add("ConnectTimeout", strconv.Itoa(seconds(opt.Timeout)))
	add("ConnectionAttempts", "1")
	add("HostName", fileWord(t.Address))
	add("Port", strconv.Itoa(t.Port))
	add("User", t.User)
	add("StrictHostKeyChecking", "yes")
	add("HashKnownHosts", "no")
	if t.HostKeyAlias != "" {
		add("HostKeyAlias", t.HostKeyAlias)
	}
	known := lists.Map(t.KnownHosts, func(f string) string { return configWord(fileWord(f)) })
	if len(known) == 0 {
		known = []string{os.DevNull}
	}
	args = append(args, "-o", "UserKnownHostsFile="+strings.Join(known, " "))
	add("GlobalKnownHostsFile", os.DevNull)
	if t.hostCommand && t.givenKnown { // an older ssh does not know the key KnownHostsCommand
		add("KnownHostsCommand", "none")
	}
	args = append(args, a.keyArgs()...)
	switch {
	case a.jump != nil:
		// The command through which an ssh reaches hosts behind the node.
		words := []string{Quote(a.jump.ssh)}
		for _, w := range a.jump.args("-W", "") {
			words = append(words, strings.ReplaceAll(Quote(w), "%", "%%"))
		}
		words[len(words)-1] = "'[%h]:%p'"
		add("ProxyUseFdpass", "no")
		args = append(args, "-o", "ProxyCommand="+strings.Join(append(words, "--", Quote(a.jump.host)), " "))
	case t.proxyCommand == "":
		add("ProxyCommand", "none")
	}
	return append(append(args, t.SSHArgs...), "--", t.word())
}

// keyArgs returns the options for keys, the agent and passwords.
func (a *attempt) keyArgs() []string {
	t := a.target
	var args []string
	add := func(key, value string) { args = append(args, option(key, value)...) }
	for _, f := range t.IdentityFiles {
		add("IdentityFile", fileWord(f))
	}
	for _, f := range t.CertificateFiles {
		add("CertificateFile", fileWord(f))
	}
	add("IdentitiesOnly", yesNo[t.IdentitiesOnly])
	switch agent := a.dialer.agentFor(t); agent {
	case "":
		add("IdentityAgent", "none")
	case os.Getenv("SSH_AUTH_SOCK"):
	default:
		add("IdentityAgent", fileWord(agent))
	}
	if t.NoPassword {
		add("PasswordAuthentication", "no")
	}
	if t.NoInteractive {
		add("KbdInteractiveAuthentication", "no")
	}
	add("BatchMode", yesNo[!a.dialer.attendedByAskpass(t)])
	return args
}
