package remote

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
)

// Lines of ssh's own messages, which are in English in every locale.
var (
	saysOffered  = regexp.MustCompile(`(?m)^debug1: Offering public key: (.*) (\S+) (SHA256:\S+)( agent)?`)
	saysMissing  = regexp.MustCompile(`(?m)^no such identity: (.*?): `)
	saysMethods  = regexp.MustCompile(`(?m)^debug1: Authentications that can continue: (\S+)`)
	saysOther    = regexp.MustCompile(`(?m)^debug1: Next authentication method: (gssapi\S*|hostbased)`)
	saysHostKey  = regexp.MustCompile(`(?m)^debug1: Server host key: (\S+ \S+)`)
	saysNoMatch  = regexp.MustCompile(`no matching (.*?) found\. Their offer: (\S+)`)
	saysName     = regexp.MustCompile(`Could not resolve hostname (.*?): (.*?)\s*(?:\n|$)`)
	saysConnect  = regexp.MustCompile(`(?m)^ssh: connect to host .*? port \d+: (.*?)\s*$`)
	saysTooMany  = regexp.MustCompile(`(?i)too many authentication failures`)
	saysDenied   = regexp.MustCompile(`(?m)Permission denied \([^)]*\)\.`)
	saysUnopened = regexp.MustCompile(`(?m)^channel \d+: open failed: (.*?)\s*$`)
	saysBanner   = regexp.MustCompile(`kex_exchange_identification: banner line \d+: (.*?)\s*(?:\n|$)`)
	saysTemporal = regexp.MustCompile(`(?i)temporary failure|try\s+again`)
)

// explain returns the error of a failed login.
func (a *attempt) explain(clock *deadline) error {
	b, err := os.ReadFile(masterLog(a.folder))
	if err != nil {
		b = nil // ssh wrote no log
	}
	said := string(b)
	a.login.mu.Lock()
	gaveUp := a.login.gaveUp
	a.login.mu.Unlock()
	a.remember(said)
	switch {
	case errors.Is(gaveUp, errClosedByNode):
		return closedError(a.target)
	case gaveUp != nil:
		return a.login.refused("")
	case clock.expired() && !strings.Contains(said, "Connection established") &&
		a.jump == nil && a.target.proxyCommand == "":
		return noAnswer(a.target)
	case clock.expired():
		return a.dialer.unfinished(a.target)
	}
	if err := a.untrusted(said); err != nil {
		return err
	}
	if saysTooMany.MatchString(said) {
		return a.login.refused("too many")
	}
	a.login.said = a.login.news()
	if a.target.proxyCommand == "" { // ssh shows the banner on its stderr, as a ProxyCommand shows its errors
		a.login.said += "\n" + nodeLines(a.stderr.String())
	}
	if saysDenied.MatchString(said) {
		return a.login.withMessage(a.login.refused("ssh: unable"))
	}
	begun := strings.Contains(said, "debug1: Connecting to") || strings.Contains(said, "debug1: Executing proxy")
	if line := mistakeIn(said + "\n" + a.stderr.String()); line != "" && !begun && a.jump == nil {
		return localConfigError(line, a.target.word())
	}
	return a.unreached(said)
}

// remember records the keys and methods that ssh tried, for the error of a rejected login.
func (a *attempt) remember(said string) {
	keys := a.login.keys
	for _, m := range saysOffered.FindAllStringSubmatch(said, -1) {
		label := m[1]
		if m[4] != "" {
			label = fmt.Sprintf("agent key %s %s", m[2], m[3])
		} else if a.locked(label) {
			continue
		}
		keys.labels = append(keys.labels, label)
		keys.signers = append(keys.signers, nil)
	}
	for _, m := range saysOther.FindAllStringSubmatch(said, -1) {
		keys.labels = append(keys.labels, m[1])
	}
	for _, m := range saysMissing.FindAllStringSubmatch(said, -1) {
		keys.notes = append(keys.notes, m[1]+" does not exist")
	}
	if len(keys.labels) == 0 && a.login.asked == 0 {
		keys.labels = append(keys.labels, "no key")
	}
	if all := saysMethods.FindAllStringSubmatch(said, -1); len(all) > 0 {
		methods := strings.Split(all[len(all)-1][1], ",")
		a.login.offered.Store(&methods)
	}
}

// locked reports whether an identity file needs a passphrase and there is no way to prompt for it.
// If so, it records the file.
func (a *attempt) locked(file string) bool {
	keys := a.login.keys
	text, err := os.ReadFile(file)
	if err != nil || a.dialer.attendedByAskpass(a.target) {
		return false
	}
	if _, err := ssh.ParsePrivateKey(text); !errors.As(err, new(*ssh.PassphraseMissingError)) {
		return false
	}
	keys.addLocked(file, text, nil)
	return true
}

// untrusted returns the error of a node with a wrong or unknown host key, or with no common
// algorithm. Otherwise it returns nil.
func (a *attempt) untrusted(said string) error {
	if m := saysNoMatch.FindStringSubmatch(said); m != nil {
		if strings.HasPrefix(m[1], "host key") {
			return a.check.otherType(strings.Split(m[2], ","))
		}
		return algorithmError(a.target, m[1], strings.ReplaceAll(m[2], ",", ", "))
	}
	if !strings.Contains(said, "Host key verification failed") {
		return nil
	}
	shows := "a key that ssh did not log"
	if m := saysHostKey.FindStringSubmatch(said); m != nil {
		shows = m[1]
	}
	if strings.Contains(said, "REVOKED HOST KEY") {
		return a.check.revoked(shows, revokedAt(a.target.KnownHosts, shows))
	}
	if known := a.check.known(); len(known) > 0 {
		kind, _, _ := strings.Cut(shows, " ")
		return a.check.changed(shows, kind, known)
	}
	return a.check.unknown(shows)
}

// revokedAt returns the position of the line that revokes a key. shows holds the key's type and
// fingerprint.
func revokedAt(files []string, shows string) string {
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		n := 0
		for line := range bytes.Lines(text) {
			n++
			marker, _, key, _, _, err := ssh.ParseKnownHosts(line)
			if err == nil && marker == "revoked" && strings.HasSuffix(shows, ssh.FingerprintSHA256(key)) {
				return fmt.Sprintf("%s:%d", file, n)
			}
		}
	}
	return strings.Join(files, " or ")
}

// unreached returns the error of a failed connection.
func (a *attempt) unreached(said string) error {
	t := a.target
	last := lastLine(said)
	switch connect := saysConnect.FindStringSubmatch(said); {
	case strings.Contains(said, notAllowed):
		return bannedError(t)
	case saysName.MatchString(said):
		why := errors.New(saysName.FindStringSubmatch(said)[2])
		if saysTemporal.MatchString(why.Error()) {
			return lookupError(t, why)
		}
		return nameError(t, why)
	case connect != nil && connect[1] == errRefused.Error(), connect != nil && connect[1] == "Connection refused":
		return refusedError(t)
	case connect != nil && strings.Contains(connect[1], "timed out"):
		return noAnswer(t)
	case connect != nil:
		return nodeerr.Errorf("%w to %s: %s", ErrDial, nodeerr.Own(hostPort(t)), connect[1])
	case strings.Contains(said, "timed out"):
		return a.dialer.unfinished(t)
	case a.jump != nil:
		// A jump host cannot reach the node. Only the jump host's master logs the reason, and only
		// the logs of dsbuild's masters can be read.
		var text []byte
		if a.jump.folder != "" {
			text, _ = os.ReadFile(masterLog(a.jump.folder)) //nolint:errcheck // without a log, ssh's last line stays
		}
		if all := saysUnopened.FindAllStringSubmatch(string(text), -1); len(all) > 0 {
			why := all[len(all)-1][1]
			if strings.HasPrefix(why, "administratively prohibited") {
				return prohibitedError(a.target, why)
			}
			return jumpError(a.target, reported(why))
		}
		return jumpError(a.target, lastLine(a.stderr.String()))
	case t.proxyCommand != "":
		err := nodeerr.Errorf("%w to %s: ProxyCommand (%s) failed: %s",
			ErrDial, nodeerr.Own(hostPort(t)), t.proxyCommand, cmp.Or(lastLine(a.stderr.String()), last))
		return fault.WithHint(err, "run ssh -v -p %d %s@%s", t.Port, t.User, t.word())
	}
	if m := saysBanner.FindStringSubmatch(said); m != nil {
		last = reported(m[1])
	}
	if a.login.offered.Load() == nil {
		return throttledError{handshakeClosed(t, last)}
	}
	return a.login.withMessage(handshakeClosed(t, last))
}

// lastLine returns the last line of a text that is not a debug message.
func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if line := strings.TrimSpace(lines[i]); line != "" && !strings.HasPrefix(line, "debug") {
			return line
		}
	}
	return ""
}
