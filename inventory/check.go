package inventory

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/internal/lineerr"
)

// nodeName matches the names that nodes, groups and envs may have: they need no quoting in a
// shell, a file name or a report.
var nodeName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)

func checkName(s string) error {
	switch {
	case len(s) > maxName:
		return fmt.Errorf("name longer than %d characters", maxName)
	case nodeName.MatchString(s):
		return nil
	}
	return fmt.Errorf("invalid name %q: use letters, digits, '.', '_' and '-', not starting with '.' or '-'",
		lineerr.Clip(s))
}

// nameHint returns the hint for a node name that holds a user, an address or a port.
func nameHint(s string) string {
	switch {
	case strings.Contains(s, "@"):
		return "set the login user with user: in a YAML inventory"
	case strings.Contains(s, ":"):
		return "set address: and port: in a YAML inventory"
	}
	return ""
}

// checkWord rejects text with a line break.
func checkWord(s string) error {
	if strings.ContainsAny(s, "\n\r") {
		return errors.New("must be one line")
	}
	return nil
}

// loginName matches the user names that systems allow, optionally after a domain. A shell expands
// none of the characters.
var loginName = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9.-]*\\)?[\pL\pN_][\pL\pN_.+-]*$`)

// CheckUser returns an error if s is not valid for user: in an inventory, or for --user.
func CheckUser(s string) error { return checkUser(s) }

// CheckPython returns an error if s is not valid for python: in an inventory, or for --python.
func CheckPython(s string) error { return checkPython(s) }

func checkUser(s string) error {
	if !loginName.MatchString(s) {
		return fmt.Errorf("invalid user name %q", lineerr.Clip(s))
	}
	return nil
}

// zoneName matches the zone of an IPv6 address: the name of an interface.
var zoneName = regexp.MustCompile(`^[A-Za-z0-9_.-]{0,32}$`)

func checkAddress(s string) error {
	if ip, err := netip.ParseAddr(s); err == nil && zoneName.MatchString(ip.Zone()) ||
		nodeName.MatchString(s) && len(s) <= maxName {
		return nil
	}
	return fmt.Errorf("invalid host name or IP address %q (set a port with port:)", lineerr.Clip(s))
}

// checkPython rejects a relative interpreter path, which a command would resolve in its own working directory.
func checkPython(s string) error {
	switch {
	case strings.ContainsAny(s, "\n\r"):
		return errors.New("must be one line")
	case strings.HasPrefix(s, "-"), strings.HasPrefix(s, "~"), strings.Contains(s, "/") && !strings.HasPrefix(s, "/"):
		return fmt.Errorf("%q must be an absolute path on the node, or a command name", lineerr.Clip(s))
	}
	return nil
}

func portNumber(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > maxPort {
		return 0, fmt.Errorf("invalid port %q: want 1 to %d", lineerr.Clip(s), maxPort)
	}
	return n, nil
}

// checkJump reads [user@]host[:port][,...].
func checkJump(s string) error {
	for hop := range strings.SplitSeq(s, ",") {
		hop = strings.TrimSpace(hop)
		user, host, found := strings.Cut(hop, "@")
		if !found {
			host = hop
		} else if err := checkUser(user); err != nil {
			return fmt.Errorf("jump host: %w", err)
		}
		port := ""
		if rest, ok := strings.CutPrefix(host, "["); ok { // [IPv6]:port
			host, port, found = strings.Cut(rest, "]")
			port = strings.TrimPrefix(port, ":")
			if !found {
				return errors.New("jump host: unmatched [")
			}
		} else if strings.Count(host, ":") == 1 {
			host, port, _ = strings.Cut(host, ":")
		}
		if err := checkAddress(host); err != nil {
			return fmt.Errorf("jump host: %w", err)
		}
		if _, err := portNumber(port); port != "" && err != nil {
			return fmt.Errorf("jump host: %w", err)
		}
	}
	return nil
}
