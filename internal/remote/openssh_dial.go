package remote

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// rideLimit is how long a master of the user's, and the node behind it, may take to answer.
const rideLimit = 5 * time.Second

// dialOpenSSH connects to a resolved target by way of OpenSSH; it calls itself for jump
// hosts.
func (d *SSH) dialOpenSSH(ctx context.Context, t Target) (*sshConn, error) {
	program, err := d.openSSH()
	if err != nil {
		return nil, err
	}
	if c := d.ride(ctx, program, t); c != nil {
		return c, nil
	}
	var behind *opensshLink
	release := func() {}
	if n := len(t.Jump); n > 0 {
		last := t.Jump[n-1]
		last.Jump, last.jump = t.Jump[:n-1], true
		jump, done, err := d.jumps.get(ctx, "openssh "+jumpKey(t.Jump), func(ctx context.Context) (*sshConn, error) { return d.dialOpenSSH(ctx, last) })
		if err != nil {
			return nil, fmt.Errorf("through jump host %s: %w", last.Address, err)
		}
		behind, release = jump.link.(*opensshLink), done
	}
	c, err := d.connect(ctx, t, func(clock *deadline) (*sshConn, error) { return d.master(clock, program, t, behind) })
	if err != nil {
		release()
		return nil, err
	}
	c.release = release
	return c, nil
}

// ride opens a connection by way of a master of the user's, or returns nil: then there
// is none, or it no longer answers. That OpenSSH has checked who the node is, and logged
// in. It is as safe as it was told to be; t.KnownHosts has no say.
func (d *SSH) ride(ctx context.Context, program string, t Target) *sshConn {
	for _, path := range t.masters() {
		folder, err := privateFolder()
		if err != nil {
			return nil
		}
		l := newLink(program, t.Address, folder, path, nil)
		c := newConn(t, l)
		l.seats, l.lost = d.masters, c.end
		if l.answers(ctx, t.jump) == nil {
			go l.keepAlive(c, d.opt.KeepAlive*time.Duration(d.opt.KeepAliveMax))
			return c
		}
		c.Close() //nolint:errcheck // it is of no use
	}
	return nil
}

// rideOnly is ride for a target that needs OpenSSH for nothing else.
func (d *SSH) rideOnly(ctx context.Context, t Target) *sshConn {
	if d.opt.Way == Native || t.jump || !t.hasMaster() {
		return nil
	}
	program, err := d.openSSH()
	if err != nil {
		return nil
	}
	return d.ride(ctx, program, t)
}

// answers has the master answer and, where it is not that of a jump host, which may
// forward connections and run nothing, the node behind it.
func (l *opensshLink) answers(ctx context.Context, forwards bool) error {
	if !forwards {
		return l.ask(ctx, rideLimit)
	}
	limited, cancel := context.WithTimeout(ctx, rideLimit)
	defer cancel()
	cmd := exec.CommandContext(limited, l.ssh, l.args("-O", "check", "--", l.host)...)
	cmd.WaitDelay = time.Second
	return cmd.Run()
}

// readyEvery is how often is looked whether a master is ready: then its socket is there.
const readyEvery = 5 * time.Millisecond

// master starts a master for t, which may lie behind a jump host, and waits until it has
// logged in.
func (d *SSH) master(clock *deadline, program string, t Target, jump *opensshLink) (*sshConn, error) {
	check, err := d.hostKeys.checker(t)
	if err != nil {
		return nil, err
	}
	folder, err := privateFolder()
	if err != nil {
		return nil, err
	}
	a := &attempt{dialer: d, target: t, jump: jump, check: check, folder: folder}
	l, err := a.start(clock, program)
	if err != nil {
		os.RemoveAll(folder) //nolint:errcheck // nothing in it is a secret
		return nil, err
	}
	return d.masterConn(t, l), nil
}

// start starts the master, and waits until it has logged in.
func (a *attempt) start(clock *deadline, program string) (*opensshLink, error) {
	d, t, socket := a.dialer, a.target, filepath.Join(a.folder, "master")
	asking, stop := context.WithCancelCause(clock)
	defer stop(nil)
	a.login = &opensshLogin{login: login{target: t, keys: &keySet{}, answers: d.answers, ctx: asking, clock: clock}, log: masterLog(a.folder), tell: d.opt.Note, stop: stop, by: map[string]*loan{}}
	cmd := exec.Command(program, a.args(socket)...) //nolint:noctx // it outlives the attempt
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
	if err != nil {
		return nil, startError(t, err)
	}
	err = a.wait(asking, p, socket, stop)
	if err != nil {
		p.kill()
		<-p.done
		err = a.explain(clock)
	}
	a.login.settle(err)
	if err != nil {
		return nil, err
	}
	return newLink(program, t.Address, a.folder, socket, p), nil
}

// startError is the error of an ssh that did not start.
func startError(t Target, err error) error {
	if tooManyFiles(err) {
		return filesError(t, err)
	}
	return fmt.Errorf("%w to %s: starting ssh: %w", ErrDial, hostPort(t), err)
}

// wait waits until the master is ready, has ended, or is to end.
func (a *attempt) wait(asking context.Context, p *process, socket string, stop context.CancelCauseFunc) error {
	tick := time.NewTicker(readyEvery)
	defer tick.Stop()
	for {
		select {
		case <-p.done:
			stop(errHungUp) // who is asked something need not answer
			return errHungUp
		case <-asking.Done():
			return context.Cause(asking)
		case <-tick.C:
			if _, err := os.Lstat(socket); err == nil {
				return nil
			}
		}
	}
}

// masterConn is the connection by way of a master that is ready.
func (d *SSH) masterConn(t Target, l *opensshLink) *sshConn {
	c := newConn(t, l)
	go func() {
		<-l.master.done
		if text, err := os.ReadFile(masterLog(l.folder)); err == nil && strings.Contains(string(text), "not responding") {
			why := fmt.Sprintf("no sign of life for %s", d.opt.KeepAlive*time.Duration(d.opt.KeepAliveMax))
			c.verdict.CompareAndSwap(nil, &why)
		}
		c.end()
	}()
	return c
}

// attendedByAskpass reports whether a person can be asked what ssh wants to know.
func (d *SSH) attendedByAskpass(t Target) bool { return d.opt.Askpass != "" && d.answers.attended(t) }

// attempt is a login by OpenSSH that is under way.
type attempt struct {
	dialer *SSH
	target Target
	jump   *opensshLink // the way to it; nil is none
	check  *hostKeyCheck
	login  *opensshLogin
	folder string // private
	stderr tail   // what else was said: by a ProxyCommand
}

// seconds are a time as ssh takes it: at least one.
func seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

// yesNo is a flag as ssh takes it.
func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// args are the options of a master. What dsbuild has resolved goes before what the
// configuration says; the rest of it is for ssh alone.
func (a *attempt) args(socket string) []string {
	t, opt := a.target, a.dialer.opt
	args := append(a.dialer.config.flags(), "-M", "-N", "-T", "-S", socket, "-E", masterLog(a.folder))
	add := func(key, value string) { args = append(args, option(key, value)...) }
	add("LogLevel", "DEBUG1")
	for _, key := range []string{"ControlPersist", "ForwardAgent", "ForwardX11", "PermitLocalCommand", "UpdateHostKeys", "VerifyHostKeyDNS", "NoHostAuthenticationForLocalhost", "Tunnel"} {
		add(key, "no")
	}
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
	args = append(args, a.trustArgs()...)
	args = append(args, a.keyArgs()...)
	switch {
	case a.jump != nil:
		args = append(args, "-o", "ProxyCommand="+a.jump.proxyCommand())
	case t.proxyCommand == "":
		add("ProxyCommand", "none")
	}
	return append(args, "--", t.word())
}

// trustArgs say where the node's key is looked up.
func (a *attempt) trustArgs() []string {
	var files []string
	for _, f := range a.target.KnownHosts {
		files = append(files, configWord(fileWord(f)))
	}
	if len(files) == 0 {
		files = []string{os.DevNull}
	}
	args := []string{"-o", "UserKnownHostsFile=" + strings.Join(files, " "), "-o", "GlobalKnownHostsFile=" + os.DevNull}
	if a.target.hostCommand && a.target.givenKnown { // an older ssh knows no such key
		args = append(args, "-o", "KnownHostsCommand=none")
	}
	return args
}

// keyArgs say what there is to log in with.
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
	add("IdentitiesOnly", yesNo(t.IdentitiesOnly))
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
	add("BatchMode", yesNo(!a.dialer.attendedByAskpass(t)))
	return args
}
