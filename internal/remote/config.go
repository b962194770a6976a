package remote

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// NoConfig is the Options.Config value for no configuration file.
const NoConfig = "none"

// clientConfig is the OpenSSH client configuration, as evaluated by ssh -G.
type clientConfig struct {
	file   string        // "" means the user's and the system's files
	asking chan struct{} // limits how many ssh -G run at once
	ticket func() bool   // whether Kerberos has a ticket
	ssh    func() string // returns the path of ssh or ""

	mu   sync.Mutex
	said map[string]settings // results by the arguments of ssh -G; those without a name are for all names
}

func newClientConfig(file string, note func(string)) *clientConfig {
	c := &clientConfig{file: file, said: map[string]settings{}}
	// ssh -G is short-lived and bound by the CPU, so one per CPU may run.
	c.asking = make(chan struct{}, max(4, runtime.GOMAXPROCS(0)))
	c.ssh = sync.OnceValue(func() string {
		program, err := exec.LookPath("ssh")
		if ignored := c.own(); err != nil && ignored != "" {
			note("ignoring " + ignored + ": ssh not found on PATH")
		}
		return program
	})
	c.ticket = sync.OnceValue(func() bool {
		klist, err := exec.LookPath("klist")
		if err != nil {
			return false
		}
		ctx, cancel := context.WithTimeout(context.Background(), askLimit)
		defer cancel()
		return exec.CommandContext(ctx, klist, "-s").Run() == nil
	})
	return c
}

// own returns the user's configuration file, or "" if it does not exist.
func (c *clientConfig) own() string {
	file := c.file
	if file == "" {
		home, _ := os.UserHomeDir()
		file = filepath.Join(home, ".ssh", "config")
	}
	if !exists(file) {
		return ""
	}
	return file
}

// settings holds all values of each key that Resolve reads, for one host. For most keys only the
// first value is used.
type settings map[string][]string

// isResolved reports whether Resolve reads key even if it is in no configuration file. ssh prints five times as many
// keys, and the settings of thousands of nodes stay in memory.
func isResolved(key string) bool {
	switch key {
	case "batchmode", "certificatefile", "challengeresponseauthentication", "controlpath", "globalknownhostsfile",
		"gssapiauthentication", "hostbasedauthentication", "hostkeyalias", "hostname", "identitiesonly", "identityagent",
		"identityfile", "kbdinteractiveauthentication", "knownhostscommand", "passwordauthentication", "pkcs11provider",
		"port", "proxycommand", "proxyjump", "user", "userknownhostsfile":
		return true
	}
	return false
}

func (s settings) first(key string) string {
	if v := s[key]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// value returns the first value of key, and "" for "none".
func (s settings) value(key string) string {
	if v := s.first(key); !strings.EqualFold(v, "none") {
		return v
	}
	return ""
}

// says reports whether the first value of key is answer, yes or no (ssh may print true or false).
func (s settings) says(key, answer string) bool {
	other := map[string]string{"yes": "true", "no": "false"}[answer]
	v := s.first(key)
	return strings.EqualFold(v, answer) || strings.EqualFold(v, other)
}

// number returns the first value of key, and 0 if it is not a number.
func (s settings) number(key string) int {
	n, _ := strconv.Atoi(s.first(key)) //nolint:errcheck // ssh has checked it
	return n
}

// askLimit limits the run of ssh -G, which may resolve a name, and of klist.
const askLimit = 10 * time.Second

// flags returns the options that make ssh read the same configuration as dsbuild. ssh takes the
// home folder from the user database, not from HOME.
func (c *clientConfig) flags() []string {
	switch c.file {
	case "":
	case NoConfig:
		return []string{"-F", "none"}
	default:
		return []string{"-F", c.file}
	}
	home, err := os.UserHomeDir()
	account, other := user.Current()
	if own := c.own(); err == nil && other == nil && account.HomeDir != home && own != "" {
		return []string{"-F", own}
	}
	return nil
}

// lookup returns the settings for t under the name alias. It passes the inventory's port, user and
// arguments to ssh -G, so that Match lines see them.
func (c *clientConfig) lookup(ctx context.Context, alias string, t Target) (settings, error) {
	if c.file == NoConfig && len(t.SSHArgs) == 0 {
		return settings{}, nil
	}
	if c.ssh() == "" {
		if len(t.SSHArgs) > 0 {
			err := fmt.Errorf("cannot evaluate the ssh arguments of %s (%s): ssh not found on PATH",
				alias, strings.Join(t.SSHArgs, " "))
			return nil, fault.WithHint(err, "install the OpenSSH client")
		}
		return settings{}, nil
	}
	args := append([]string{"-G", "-v"}, c.flags()...)
	if t.Port > 0 {
		args = append(args, option("Port", strconv.Itoa(t.Port))...)
	}
	if t.User != "" {
		args = append(args, option("User", t.User)...)
	}
	args = append(append(args, t.SSHArgs...), "--")
	forAll, forThis := fmt.Sprintf("%q", args), fmt.Sprintf("%q", append(args, alias))
	known := func() (settings, bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if s, ok := c.said[forAll]; ok {
			return s, true
		}
		s, ok := c.said[forThis]
		return s, ok
	}
	if s, ok := known(); ok {
		return s, nil
	}
	select {
	case c.asking <- struct{}{}:
		defer func() { <-c.asking }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s, ok := known(); ok { // looked up for another node in the meantime
		return s, nil
	}
	s, same, err := c.ask(ctx, alias, append(args, alias))
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if same {
			delete(s, "hostname")
			c.said[forAll] = s
		} else {
			c.said[forThis] = s
		}
	}
	return s, err
}

// ask runs ssh -G. same reports that the output would be the same for every host, except for the name.
func (c *clientConfig) ask(ctx context.Context, alias string, args []string) (s settings, same bool, err error) {
	limited, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	cmd := exec.CommandContext(limited, c.ssh(), args...)
	cmd.WaitDelay = time.Second // a child of ssh may hold its output open
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	switch {
	case ctx.Err() != nil:
		return nil, false, ctx.Err()
	case limited.Err() != nil:
		return nil, false, fault.WithHint(fmt.Errorf("ssh -G %s timed out after %s", Quote(alias), askLimit),
			"check for a hanging Match exec in ~/.ssh/config")
	case err != nil:
		return nil, false, localConfigError(cmp.Or(mistakeIn(stderr.String()), lastLine(stderr.String()), err.Error()), alias)
	}
	s = settings{}
	files := filesOf(stderr.String())
	same = files.forEveryHost()
	idle := idleKeywords()
	for line := range bytes.Lines(out) {
		name, v, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		k := canonical(string(name))
		if isResolved(k) || !idle[k] && (files.mention(k) || mention(args, k)) {
			s[k] = append(s[k], string(v))
			same = same && (k == "hostname" || !strings.Contains(string(v), alias))
		}
	}
	// ssh puts the host's name, or a digest of it, into ControlPath.
	same = same && s.value("controlpath") == "" && s.first("hostname") == alias
	// Drop the default files, which no configuration named.
	if account, err := user.Current(); err == nil {
		known := filepath.Join(account.HomeDir, ".ssh", "known_hosts")
		if s.first("userknownhostsfile") == known+" "+known+"2" {
			delete(s, "userknownhostsfile")
		}
	}
	keys := s["identityfile"]
	named := func(file string) bool { return !strings.HasPrefix(file, "~/.ssh/id_") }
	if len(keys) >= fewestDefaults && !slices.ContainsFunc(keys, named) {
		delete(s, "identityfile")
	}
	return s, same, nil
}

// readFiles matches ssh's debug message about each configuration file that it reads.
var readFiles = regexp.MustCompile(`(?m)^debug1: Reading configuration data (.+)$`)

// configFiles are the files of a configuration.
type configFiles struct {
	names  []string
	lines  [][]string      // the words of each line, lower case
	keys   map[string]bool // the keywords of the lines
	hidden bool            // one of the files cannot be read
}

// filesOf returns the configuration files in ssh's debug messages.
func filesOf(debug string) configFiles {
	c := configFiles{keys: map[string]bool{}}
	for _, f := range readFiles.FindAllStringSubmatch(debug, -1) {
		c.names = append(c.names, strings.TrimSpace(f[1]))
		text, err := os.ReadFile(strings.TrimSpace(f[1]))
		c.hidden = c.hidden || err != nil
		for line := range strings.Lines(strings.ToLower(string(text))) {
			if words := configWords(line); len(words) > 0 {
				c.lines, c.keys[canonical(words[0])] = append(c.lines, words), true
			}
		}
	}
	return c
}

// configWords splits a line of ssh_config into words.
func configWords(line string) []string {
	return strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t\r\n\f=\"", r) })
}

// mention reports whether a line may set key, for any host. ssh -G prints keywords that have only their defaults, too.
func (c configFiles) mention(key string) bool {
	return c.hidden || c.keys[key]
}

// mention reports whether arguments of ssh may set key.
func mention(args []string, key string) bool {
	return slices.ContainsFunc(args, func(arg string) bool {
		words := configWords(strings.TrimPrefix(arg, "-o"))
		return len(words) > 0 && canonical(words[0]) == key
	})
}

// forEveryHost reports whether no line of the files is for only some hosts. Then one ssh process is enough: with
// one per node, a thousand nodes would take as long as dsbuild verify.
func (c configFiles) forEveryHost() bool {
	for _, words := range c.lines {
		switch words[0] {
		case "host":
			if !slices.Equal(words[1:], []string{"*"}) {
				return false
			}
		case "match":
			for _, w := range words[1:] {
				if w != "all" && w != "final" && w != "canonical" {
					return false
				}
			}
		case "canonicalizehostname":
			return false
		}
	}
	return len(c.names) > 0 && !c.hidden
}

// localConfigError returns the error of an ssh that cannot read the client configuration.
func localConfigError(why, alias string) error {
	return fault.WithHint(fmt.Errorf("invalid ssh client configuration: %s", why),
		"correct it, then check it: ssh -G %s", Quote(alias))
}

// fewestDefaults is the least number of IdentityFile values that ssh prints if the configuration
// names no file.
const fewestDefaults = 4

// atLine matches ssh's error about a line of a configuration file.
var atLine = regexp.MustCompile(`(?m)^.+[: ]line \d+: .+$`)

// debugLines matches ssh's debug messages: "debug1: FILE line 21: Applying options for *" is not an error.
var debugLines = regexp.MustCompile(`(?m)^debug\d: .*$`)

// mistakeIn returns ssh's error about a line of its configuration, or "".
func mistakeIn(said string) string {
	return strings.TrimSpace(atLine.FindString(debugLines.ReplaceAllString(said, "")))
}

// Resolve fills the empty fields of t, and of its jump hosts, from the OpenSSH client configuration
// and from ssh's defaults. It looks up t.Address (t.Name if that is empty) as ssh does for the same
// argument.
func (d *SSH) Resolve(ctx context.Context, t Target) (Target, error) { return d.resolve(ctx, t, 0) }

func (d *SSH) resolve(ctx context.Context, t Target, depth int) (Target, error) {
	if t.resolved {
		return t, nil
	}
	if depth > 8 {
		return t, fmt.Errorf("jump hosts of %s form a loop", t.Address)
	}
	alias := cmp.Or(t.Address, t.Name)
	t.alias = alias
	if alias == "" || strings.HasPrefix(alias, "-") {
		return t, fmt.Errorf("invalid node address %q", alias)
	}
	set, err := d.config.lookup(ctx, alias, t)
	if err != nil {
		return t, err
	}
	if err := fillLogin(&t, alias, set); err != nil {
		return t, err
	}
	if t.Jump == nil {
		if t.Jump, err = ParseJump(set.first("proxyjump")); err != nil {
			return t, fmt.Errorf("ProxyJump of %s: %w", alias, err)
		}
		if len(t.Jump) == 0 {
			t.proxyCommand = set.value("proxycommand")
		}
	}
	given := t.KnownHosts
	t.givenKnown = len(given) > 0
	names := tokensOf(t, alias)
	fillKeys(&t, set, names)
	fillAlgorithms(&t, set)
	if len(t.KnownHosts) == 0 {
		own := cmp.Or(set.first("userknownhostsfile"), "~/.ssh/known_hosts ~/.ssh/known_hosts2")
		all := cmp.Or(set.first("globalknownhostsfile"), filepath.Join(os.ExpandEnv(systemSSH), "ssh_known_hosts"))
		t.KnownHosts = append(expandAll(strings.Fields(own), names), expandAll(strings.Fields(all), names)...)
	}
	if path := set.value("controlpath"); t.ControlPaths == nil && path != "" {
		t.ControlPaths = []string{path}
	}
	if t.Jump, err = d.resolveJumps(ctx, t, given, depth); err != nil {
		return t, err
	}
	if err := d.chooseClient(&t, set); err != nil {
		return t, err
	}
	t.resolved = true
	return t, nil
}

// fillLogin fills the address, the port, the user and the host key alias.
func fillLogin(t *Target, alias string, set settings) error {
	t.Address = alias
	if h := set.first("hostname"); h != "" {
		t.Address = strings.NewReplacer("%h", alias, "%%", "%").Replace(h)
	}
	if p := set.first("port"); t.Port == 0 && p != "" {
		n, err := strconv.Atoi(p)
		if err != nil {
			return fmt.Errorf("invalid port %q for %s", p, alias)
		}
		t.Port = n
	}
	t.Port = cmp.Or(t.Port, 22)
	if t.Port < 0 || t.Port > 65535 {
		return fmt.Errorf("port %d for %s is out of range", t.Port, alias)
	}
	t.User = cmp.Or(t.User, set.first("user"), localUser())
	t.HostKeyAlias = cmp.Or(t.HostKeyAlias, strings.ToLower(set.first("hostkeyalias"))) // as ssh does
	return nil
}

// fillKeys fills the settings of authentication: keys, certificates, the agent, and the methods
// allowed.
func fillKeys(t *Target, set settings, names tokens) {
	if len(t.IdentityFiles) == 0 {
		t.IdentityFiles = expandAll(set["identityfile"], names)
	}
	if len(t.CertificateFiles) == 0 {
		t.CertificateFiles = expandAll(set["certificatefile"], names)
	}
	if set.says("identitiesonly", "yes") {
		t.IdentitiesOnly = true
	}
	t.Agent = cmp.Or(t.Agent, agentOf(set.first("identityagent"), names))
	t.BatchMode = t.BatchMode || set.says("batchmode", "yes")
	t.NoPassword = t.NoPassword || set.says("passwordauthentication", "no")
	t.NoInteractive = t.NoInteractive || set.says("kbdinteractiveauthentication", "no") ||
		set.says("challengeresponseauthentication", "no")
	t.methods = []string{byKey, interactively, byPassword}
	if preferred := set.first("preferredauthentications"); preferred != "" {
		t.methods = strings.Split(preferred, ",")
	}
	if set.says("pubkeyauthentication", "no") {
		t.methods = slices.DeleteFunc(t.methods, func(m string) bool { return m == byKey })
	}
}

// agentOf reads the value of IdentityAgent: a path, none, SSH_AUTH_SOCK, or $ and the name of
// another variable.
func agentOf(v string, names tokens) string {
	switch {
	case v == "" || v == "SSH_AUTH_SOCK":
		return ""
	case strings.EqualFold(v, "none"):
		return "none"
	case strings.HasPrefix(v, "$") && !strings.Contains(v, "/"):
		return cmp.Or(os.Getenv(strings.Trim(v, "${}")), "none")
	}
	return expand(v, names)
}

// expandAll expands file names and drops "none".
func expandAll(files []string, names tokens) []string {
	var list []string
	for _, f := range files {
		if !strings.EqualFold(f, "none") {
			list = append(list, expand(f, names))
		}
	}
	return list
}

// resolveJumps resolves the jump hosts of t. Only the nearest may have its own jump hosts, because
// each of the others is reached through the previous jump host. A jump host without its own known
// hosts or identities gets the target's.
func (d *SSH) resolveJumps(ctx context.Context, t Target, knownHosts []string, depth int) ([]Target, error) {
	var chain []Target
	for i, j := range t.Jump {
		if len(j.KnownHosts) == 0 {
			j.KnownHosts = knownHosts
		}
		if i > 0 {
			j.Jump = []Target{}
		}
		j, err := d.resolve(ctx, j, depth+1)
		if err != nil {
			return nil, err
		}
		if len(j.IdentityFiles) == 0 {
			j.IdentityFiles = t.IdentityFiles
		}
		chain = append(chain, j.Jump...)
		j.Jump = nil
		chain = append(chain, j)
	}
	return chain, nil
}

// ParseJump reads a ProxyJump value: [user@]host[:port], several separated by commas, the nearest
// first. "" and "none" mean no jump host. Each part may also be an ssh:// address.
func ParseJump(s string) ([]Target, error) {
	s = strings.TrimSpace(s)
	if s == "" || strings.EqualFold(s, "none") {
		return nil, nil
	}
	var chain []Target
	for part := range strings.SplitSeq(s, ",") {
		part = strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(part), "ssh://"), "/")
		var t Target
		if at := strings.LastIndexByte(part, '@'); at >= 0 {
			t.User, part = part[:at], part[at+1:]
		}
		host, port, err := splitPort(part)
		if err != nil {
			return nil, err
		}
		t.Name, t.Address, t.Port = host, host, port
		chain = append(chain, t)
	}
	return chain, nil
}

// splitPort splits host[:port]. An IPv6 address with a port needs brackets.
func splitPort(s string) (host string, port int, err error) {
	host = s
	i := strings.LastIndexByte(s, ':')
	if i >= 0 && (strings.HasPrefix(s, "[") || strings.Count(s, ":") == 1) && !strings.HasSuffix(s, "]") {
		host = s[:i]
		if port, err = strconv.Atoi(s[i+1:]); err != nil || port < 1 || port > 65535 {
			return "", 0, fmt.Errorf("invalid port %q", s[i+1:])
		}
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if host == "" || strings.HasPrefix(host, "-") {
		return "", 0, fmt.Errorf("missing host name in %q", s)
	}
	return host, port, nil
}

// tokens maps the percent tokens of ssh_config to their values.
type tokens map[string]string

// tokensOf returns the tokens for a target with the configured name alias.
func tokensOf(t Target, alias string) tokens {
	home, _ := os.UserHomeDir()
	host, _ := os.Hostname()
	short, _, _ := strings.Cut(host, ".")
	id := ""
	if account, err := user.Current(); err == nil {
		id = account.Uid
	}
	jump := ""
	if n := len(t.Jump); n > 0 {
		jump = t.Jump[n-1].Address
	}
	return tokens{
		"%%": "%", "%d": home, "%h": t.Address, "%i": id, "%j": jump, "%k": cmp.Or(t.HostKeyAlias, alias),
		"%L": short, "%l": host, "%n": alias, "%p": strconv.Itoa(t.Port), "%r": t.User, "%u": localUser(),
	}
}

var (
	tokenForm = regexp.MustCompile(`%.`)
	envForm   = regexp.MustCompile(`\$\{[A-Za-z_][A-Za-z0-9_]*\}`)
)

// expand resolves ~, variables and tokens in the name of a file.
func expand(f string, names tokens) string {
	if f == "~" || strings.HasPrefix(f, "~/") || strings.HasPrefix(f, "~"+string(filepath.Separator)) {
		home, _ := os.UserHomeDir()
		f = home + f[1:]
	}
	f = envForm.ReplaceAllStringFunc(f, func(v string) string { return os.Getenv(v[2 : len(v)-1]) })
	return tokenForm.ReplaceAllStringFunc(f, func(token string) string { return cmp.Or(names[token], token) })
}

// localUser returns the user's name, on Windows without the domain.
func localUser() string {
	name := os.Getenv("USER")
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	return name[strings.LastIndexByte(name, '\\')+1:]
}
