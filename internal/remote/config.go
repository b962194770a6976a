package remote

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kevinburke/ssh_config"

	"github.com/dsbuild/dsbuild/internal/hint"
)

// clientConfig looks settings up in OpenSSH client configurations.
type clientConfig struct {
	files  []string      // nil: the user's and the system's
	asking chan struct{} // held while ssh is asked

	once   sync.Once
	parsed []*ssh_config.Config
	broken error // why the parser's answer will not do
	lacks  error // why ssh cannot be asked
}

// askers is how many ssh may be asked at once: each is a process.
const askers = 4

func newClientConfig(files []string) *clientConfig {
	return &clientConfig{files: files, asking: make(chan struct{}, askers)}
}

func (c *clientConfig) load() {
	if c.files == nil {
		if home, err := os.UserHomeDir(); err == nil {
			c.files = append(c.files, filepath.Join(home, ".ssh", "config"))
		}
		c.files = append(c.files, filepath.Join(os.ExpandEnv(systemSSH), "ssh_config"))
	}
	_, c.lacks = exec.LookPath("ssh")
	for _, f := range c.files {
		b, err := os.ReadFile(f)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			c.broken = err
			return
		}
		cfg, err := ssh_config.DecodeBytes(b)
		if err != nil {
			c.broken = fmt.Errorf("%s: %w", f, err)
			return
		}
		c.parsed = append(c.parsed, cfg)
		if c.lacks == nil && matches(f, b, 0) {
			c.broken = fmt.Errorf("%s has a Match", f)
		}
	}
}

// matches reports whether a configuration, or one that it includes, has a Match
// that OpenSSH alone understands in full: the parser knows nothing of HostName
// when it compares hosts.
func matches(file string, text []byte, depth int) bool {
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.ReplaceAll(strings.TrimSpace(line), "=", " "), " ")
		value = strings.TrimSpace(value)
		switch {
		case strings.EqualFold(key, "Match") && !strings.EqualFold(value, "all"):
			return true
		case strings.EqualFold(key, "Include") && depth < 16: // as deep as ssh goes
			for _, f := range included(file, value) {
				if b, err := os.ReadFile(f); err == nil && matches(f, b, depth+1) {
					return true
				}
			}
		}
	}
	return false
}

// included are the files of an Include in file.
func included(file, value string) []string {
	var all []string
	for _, pattern := range words(value) {
		pattern = expand(pattern, tokens{})
		if !filepath.IsAbs(pattern) {
			dir := filepath.Dir(file)
			if home, err := os.UserHomeDir(); err == nil && !strings.HasPrefix(dir, os.ExpandEnv(systemSSH)) {
				dir = filepath.Join(home, ".ssh")
			}
			pattern = filepath.Join(dir, pattern)
		}
		found, _ := filepath.Glob(pattern)
		all = append(all, found...)
	}
	return all
}

// settings are all values of each key for one host, the first of most import.
type settings map[string][]string

func (s settings) first(key string) string {
	if v := s[key]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// says reports whether a flag is yes, or no.
func (s settings) says(key, answer string) bool {
	other := map[string]string{"yes": "true", "no": "false"}[answer]
	v := s.first(key)
	return strings.EqualFold(v, answer) || strings.EqualFold(v, other)
}

// wantedSettings are the keys that are honoured; docs/design.md lists them.
var wantedSettings = []string{
	"hostname", "port", "user", "identityfile", "certificatefile", "identitiesonly", "identityagent",
	"proxyjump", "proxycommand", "userknownhostsfile", "hostkeyalias", "controlpath",
	"batchmode", "passwordauthentication", "kbdinteractiveauthentication", "challengeresponseauthentication",
}

// askLimit is how long ssh may take to resolve a name.
const askLimit = 10 * time.Second

// lookup finds the settings for alias. A configuration with what the parser
// does not know (Match exec) is left to ssh itself.
func (c *clientConfig) lookup(ctx context.Context, alias string) (settings, error) {
	c.once.Do(c.load)
	if c.broken != nil {
		return c.askSSH(ctx, alias)
	}
	s := settings{}
	for _, cfg := range c.parsed {
		for _, k := range wantedSettings {
			v, err := cfg.GetAll(alias, k)
			if err != nil {
				return nil, err
			}
			s[k] = append(s[k], v...)
		}
	}
	return s, nil
}

func (c *clientConfig) askSSH(ctx context.Context, alias string) (settings, error) {
	if c.lacks != nil {
		return nil, hint.With(fmt.Errorf("%w, and there is no ssh here that could say what it means: %w", c.broken, c.lacks), "of Match dsbuild itself knows all and host; for others install the OpenSSH client")
	}
	select {
	case c.asking <- struct{}{}:
		defer func() { <-c.asking }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	args := []string{"-G"}
	if home, _ := os.UserHomeDir(); c.files[0] != filepath.Join(home, ".ssh", "config") {
		args = append(args, "-F", c.files[0])
	}
	limited, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	cmd := exec.CommandContext(limited, "ssh", append(args, "--", alias)...)
	cmd.WaitDelay = time.Second // what ssh started may hold its output open
	out, err := cmd.Output()
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case limited.Err() != nil:
		return nil, hint.With(fmt.Errorf("ssh -G %s did not end within %s", Quote(alias), askLimit), "does a Match exec in ~/.ssh/config hang?")
	case err != nil:
		return nil, hint.With(fmt.Errorf("%w, so ssh -G was asked, and failed: %s", c.broken, complaint(err)), "what does ssh -G %s say?", Quote(alias))
	}
	s := settings{}
	for line := range bytes.Lines(out) {
		k, v, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		s[k] = append(s[k], v)
	}
	return s, nil
}

// complaint is what a program said last when it failed.
func complaint(err error) string {
	var exit *exec.ExitError
	if !errors.As(err, &exit) || len(bytes.TrimSpace(exit.Stderr)) == 0 {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(exit.Stderr)), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

// Resolve fills what t leaves empty from the OpenSSH client configuration,
// looked up for t.Address (t.Name without one) as ssh would for the same word,
// and from ssh's defaults. What t says wins. Jump hosts are resolved likewise.
func (d *SSH) Resolve(ctx context.Context, t Target) (Target, error) { return d.resolve(ctx, t, 0) }

func (d *SSH) resolve(ctx context.Context, t Target, depth int) (Target, error) {
	if t.resolved {
		return t, nil
	}
	if depth > 8 {
		return t, fmt.Errorf("jump hosts of %s form a circle", t.Address)
	}
	alias := cmp.Or(t.Address, t.Name)
	t.alias, t.openSSH = alias, d.opt.OpenSSH
	if alias == "" || strings.HasPrefix(alias, "-") {
		return t, fmt.Errorf("%q cannot be a node's address", alias)
	}
	set, err := d.config.lookup(ctx, alias)
	if err != nil {
		return t, fmt.Errorf("looking up %s: %w", alias, err)
	}
	if err := fillLogin(&t, alias, set); err != nil {
		return t, err
	}
	if t.Jump == nil {
		if t.Jump, err = jumpOf(alias, set); err != nil {
			return t, err
		}
	}
	given := t.KnownHosts
	names := tokensOf(t, alias)
	fillKeys(&t, set, names)
	fillKnownHosts(&t, set, names)
	fillControl(&t, set, names)
	t.Jump, err = d.resolveJumps(ctx, t, given, depth)
	t.resolved = err == nil
	return t, err
}

// fillLogin fills address, port, user, and the name that known_hosts has for it.
func fillLogin(t *Target, alias string, set settings) error {
	t.Address = alias
	if h := set.first("hostname"); h != "" {
		t.Address = strings.NewReplacer("%h", alias, "%%", "%").Replace(h)
	}
	if p := set.first("port"); t.Port == 0 && p != "" {
		n, err := strconv.Atoi(p)
		if err != nil {
			return fmt.Errorf("port %q of %s is not a number", p, alias)
		}
		t.Port = n
	}
	if t.Port == 0 {
		t.Port = 22
	}
	if t.Port < 0 || t.Port > 65535 {
		return fmt.Errorf("port %d of %s is out of range", t.Port, alias)
	}
	if t.User == "" {
		t.User = set.first("user")
	}
	if t.User == "" {
		t.User = localUser()
	}
	if t.HostKeyAlias == "" {
		t.HostKeyAlias = strings.ToLower(set.first("hostkeyalias")) // as ssh does
	}
	return nil
}

// jumpOf is the way to alias. A ProxyCommand is refused, not left out: without
// it the node that answers may be another one, or none.
func jumpOf(alias string, set settings) ([]Target, error) {
	if c := set.first("proxycommand"); set.first("proxyjump") == "" && c != "" && !strings.EqualFold(c, "none") {
		return nil, hint.With(fmt.Errorf("the ssh configuration has a ProxyCommand for %s (%s), which dsbuild does not run", alias, c),
			"write a ProxyJump for it (~/.ssh/config) or proxy_jump (inventory); if the node can be reached directly, put ProxyCommand none for it before that line")
	}
	jump, err := ParseJump(set.first("proxyjump"))
	if err != nil {
		return nil, fmt.Errorf("ProxyJump of %s: %w", alias, err)
	}
	return jump, nil
}

// fillKeys fills what there is to authenticate with.
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
	if t.Agent == "" {
		t.Agent = agentOf(set.first("identityagent"), names)
	}
	t.BatchMode = t.BatchMode || set.says("batchmode", "yes")
	t.NoPassword = t.NoPassword || set.says("passwordauthentication", "no")
	t.NoInteractive = t.NoInteractive || set.says("kbdinteractiveauthentication", "no") || set.says("challengeresponseauthentication", "no")
}

// agentOf reads an IdentityAgent: a path, none, SSH_AUTH_SOCK, or $ and the
// name of another variable.
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

// fillKnownHosts fills where a node's key is looked up.
func fillKnownHosts(t *Target, set settings, names tokens) {
	if len(t.KnownHosts) > 0 {
		return
	}
	list := set.first("userknownhostsfile")
	if list == "" {
		list = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
	}
	t.KnownHosts = append(expandAll(words(list), names), filepath.Join(os.ExpandEnv(systemSSH), "ssh_known_hosts"))
}

// expandAll expands file names; "none" is no file.
func expandAll(files []string, names tokens) []string {
	var list []string
	for _, f := range files {
		if !strings.EqualFold(f, "none") {
			list = append(list, expand(f, names))
		}
	}
	return list
}

// words splits a value at spaces that are not within double quotes.
func words(s string) []string {
	var list []string
	for i, part := range strings.Split(s, `"`) {
		if i%2 == 1 {
			list = append(list, part)
			continue
		}
		list = append(list, strings.Fields(part)...)
	}
	return list
}

// resolveJumps resolves the chain of t. Only the nearest jump host may bring
// a chain of its own: the others are reached through the one before. A jump
// host without known hosts or identities of its own is held to the target's.
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

// ParseJump reads a ProxyJump value: [user@]host[:port], several separated by
// commas, the nearest first; "" and "none" are no jump hosts. Each part may
// also be an ssh:// address.
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

// splitPort splits host[:port]; an IPv6 address with a port is in brackets.
func splitPort(s string) (host string, port int, err error) {
	host = s
	if i := strings.LastIndexByte(s, ':'); i >= 0 && (strings.HasPrefix(s, "[") || strings.Count(s, ":") == 1) && !strings.HasSuffix(s, "]") {
		host = s[:i]
		if port, err = strconv.Atoi(s[i+1:]); err != nil || port < 1 || port > 65535 {
			return "", 0, fmt.Errorf("%q is not a port", s[i+1:])
		}
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if host == "" || strings.HasPrefix(host, "-") {
		return "", 0, fmt.Errorf("%q names no host", s)
	}
	return host, port, nil
}

// fillControl fills where an OpenSSH may have a connection to t.
func fillControl(t *Target, set settings, names tokens) {
	path := set.first("controlpath")
	if t.ControlPaths != nil {
		return
	}
	t.ControlPaths = []string{}
	if path == "" || strings.EqualFold(path, "none") {
		return
	}
	for _, hash := range names.hashes() {
		names["%C"] = hash
		if f := expand(path, names); !slices.Contains(t.ControlPaths, f) {
			t.ControlPaths = append(t.ControlPaths, f)
		}
	}
}

// tokens are what stands for something in values of ssh_config.
type tokens map[string]string

// tokensOf are those for a target that was called alias.
func tokensOf(t Target, alias string) tokens {
	home, _ := os.UserHomeDir()
	host, _ := os.Hostname()
	short, _, _ := strings.Cut(host, ".")
	jump := ""
	if n := len(t.Jump); n > 0 {
		jump = t.Jump[n-1].Address
	}
	return tokens{
		"%%": "%", "%d": home, "%h": t.Address, "%i": userID(), "%j": jump, "%k": cmp.Or(t.HostKeyAlias, alias),
		"%L": short, "%l": host, "%n": alias, "%p": strconv.Itoa(t.Port), "%r": t.User, "%u": localUser(),
	}
}

// hashes are what %C can stand for: that of OpenSSH from 9.6 on knows of the
// jump host.
func (names tokens) hashes() []string {
	var all []string
	for _, jump := range []string{names["%j"], ""} {
		sum := sha1.Sum([]byte(names["%l"] + names["%h"] + names["%p"] + names["%r"] + jump)) // as OpenSSH names sockets
		all = append(all, hex.EncodeToString(sum[:]))
	}
	return all
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

// userID is the number of the user, or on Windows the identifier.
func userID() string {
	u, err := user.Current()
	if err != nil {
		return ""
	}
	return u.Uid
}

// localUser is the user's name, on Windows without the domain's.
func localUser() string {
	name := os.Getenv("USER")
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	return name[strings.LastIndexByte(name, '\\')+1:]
}
