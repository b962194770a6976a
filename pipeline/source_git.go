package pipeline

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lineerr"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

// gitRef is a repository and the requested tag, branch or commit.
type gitRef struct {
	url   string // as the user gave it: it may hold credentials
	ref   string // tag, branch or commit (default HEAD)
	shown string // "git+URL@REF" without credentials, for messages
}

// gitSchemes returns the allowed schemes of repositories. Others can run programs (ext::) or are
// not verified.
func gitSchemes() []string { return []string{"https", "http", "ssh", "file"} }

var (
	scpLike  = regexp.MustCompile(`^([A-Za-z0-9._-]+@)?[A-Za-z0-9][A-Za-z0-9.-]*:[^-:]`)
	goodRef  = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_./+=,%#@-]*$`)
	userinfo = regexp.MustCompile(`://\S*@`) // a password may hold an unquoted slash
	scpUser  = regexp.MustCompile(`^[^/@:\s]+@([^/:\s]+:)`)
)

// redactURL removes credentials from a URL or an error of git. It treats everything before an @ as a password, so
// it is not for text in which @REF follows a URL (see lineerr.HideCredentials).
func redactURL(text string) string {
	text = userinfo.ReplaceAllString(text, "://")
	return lineerr.HideCredentials(scpUser.ReplaceAllString(text, "$1"))
}

// parseGit reads URL[@REF], the text after "git+". An error never quotes the URL, which may hold a password.
func parseGit(arg string) (gitRef, error) {
	g := gitRef{}
	g.url, g.ref = wheel.SplitGitRef(arg)
	scheme, _, ok := strings.Cut(arg, "://")
	g.shown = "git+" + redactURL(g.url)
	u, unread := &url.URL{}, error(nil)
	if ok {
		if u, unread = url.Parse(g.url); unread != nil {
			u = &url.URL{}
		}
	}
	password, hasPassword := u.User.Password()
	web := u.Scheme == "http" || u.Scheme == "https"
	why := ""
	switch {
	case strings.ContainsFunc(arg, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		why = "contains a space or a control character"
	case ok && !slices.Contains(gitSchemes(), scheme):
		why = fmt.Sprintf("unsupported scheme %q", scheme)
	case strings.HasPrefix(arg, "-"), !ok && strings.Contains(arg, "::"), !ok && !scpLike.MatchString(g.url),
		ok && (unread != nil || strings.HasPrefix(u.Host, "-") ||
			strings.Trim(u.Path, "/") == "" || u.Host == "" && u.Scheme != "file"):
		why = "not a repository URL"
	case strings.Contains(g.url, "#"):
		why = "unexpected text after #"
	case g.url != arg && (!goodRef.MatchString(g.ref) || strings.Contains(g.ref, "..")):
		why = fmt.Sprintf("%.80q is not a tag, branch or commit", g.ref)
	case strings.ContainsFunc(u.User.Username()+password, unicode.IsControl):
		why = "the user name or password contains a control character"
	case hasPassword && !web:
		why = "a password in a " + u.Scheme + " URL has no effect and is visible to all users of this machine: use a key"
	case u.RawQuery != "" && web:
		why = "git puts the text after ? on a command line that every user of this machine can read: " +
			"put tokens before the host, https://USER:TOKEN@HOST/PATH"
	}
	if why != "" {
		return gitRef{}, badSource(g.shown, errors.New(why),
			"write git+https://HOST/PATH@REF, git+ssh://HOST/PATH@REF or git+file:///PATH@REF; "+
				"REF is a tag, branch or commit")
	}
	if g.ref != "" {
		g.shown += "@" + g.ref
	}
	return g, nil
}

// git's texts about a reference that the repository does not have, and about a connection that broke.
var (
	unknownName = regexp.MustCompile(`couldn't find remote ref|not our ref`)
	brokenOff   = regexp.MustCompile(`early EOF|RPC failed|timed out|Connection reset|hung up|returned error: 5`)
)

// unpackCommit fetches the commit, without its history, into a new repository, and unpacks its files into root.
func (g gitRef) unpackCommit(
	ctx context.Context, clone string, root *os.Root, environ []string,
) (commit string, err error) {
	defer os.RemoveAll(clone) //nolint:errcheck // in a directory that the caller removes
	repo, err := newRepository(ctx, clone, g.url, environ)
	if err != nil {
		return "", err
	}
	name := cmp.Or(g.ref, "HEAD")
	fetch := func() error {
		_, err := repo.runGit(ctx, "fetch", "--quiet", "--depth=1", "--no-tags", "origin", name)
		return err
	}
	if err = fetch(); err != nil && brokenOff.MatchString(err.Error()) {
		err = fetch()
	}
	ask := "git ls-remote " + redactURL(g.url)
	switch {
	case err != nil && unknownName.MatchString(err.Error()):
		return "", fault.WithHint(fmt.Errorf("no tag, branch or commit %s", name),
			"list them: %s (a commit must be the full hash)", ask)
	case err != nil:
		return "", fault.WithCode(fault.WithHint(fmt.Errorf("cannot read the repository: %w", err),
			"check access: %s; git must be able to log in without a prompt (credential helper or key)", ask), 1)
	}
	if commit, err = repo.commitOf(ctx, "FETCH_HEAD"); err != nil {
		return "", err
	}
	submodule := "" // a commit with submodules is not complete by itself
	err = repo.list(ctx, func(mode, _, name string) {
		if mode == submoduleMode {
			submodule = name
		}
	}, "ls-tree", "-r", "-z", commit)
	if err == nil && submodule != "" {
		err = fault.WithHint(fmt.Errorf("%s is a submodule; submodules are not fetched", submodule),
			"clone the repository with --recurse-submodules, and pass the directory")
	}
	if err != nil {
		return "", err
	}
	unpack := func(out io.Reader) error { return unpackTar(ctx, out, root) }
	return commit, repo.pipeGit(ctx, unpack, "archive", "--format=tar", "--prefix=tree/", commit)
}

// repository is a git repository on this machine.
type repository struct {
	dir string
	env []string
}

// rawAttributes, as $GIT_DIR/info/attributes, override a tree's own attributes: git writes and
// compares the bytes of the commit, and runs no filter.
const rawAttributes = "* -text -filter -ident -working-tree-encoding -export-subst -export-ignore\n"

// newRepository creates an empty repository with rawURL as origin. The URL's credentials go to its configuration file,
// which only this user can read. git passes the rest of the URL on command lines, which every local user can see.
func newRepository(ctx context.Context, dir, rawURL string, environ []string) (repository, error) {
	if err := needGit(); err != nil {
		return repository{}, err
	}
	r := repository{dir, gitEnv(environ, userVariables)}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return r, err
	}
	if _, err := r.runGit(ctx, "init", "--quiet", "--bare", "--template="); err != nil {
		return r, err
	}
	// Keys that ask for a passphrase, and unknown hosts, fail instead of asking;
	// the user's own command is unchanged.
	own, _ := r.runGit(ctx, "config", "core.sshCommand") // status 1: not set
	chosen := func(kv string) bool {
		return strings.HasPrefix(kv, "GIT_SSH_COMMAND=") || strings.HasPrefix(kv, "GIT_SSH=")
	}
	if !slices.ContainsFunc(environ, chosen) && len(bytes.TrimSpace(own)) == 0 {
		r.env = append(r.env, "GIT_SSH_COMMAND=ssh -oBatchMode=yes -oConnectTimeout=30 -oServerAliveInterval=20")
	}
	// Settings of the user for the end of lines or archives would change the copy.
	settings := "[core]\n\tautocrlf = false\n\teol = lf\n\tattributesFile = " + os.DevNull + "\n[tar]\n\tumask = 0\n"
	// A working server sends keepalives: five bytes every five seconds.
	settings += "[http]\n\tlowSpeedLimit = 1\n\tlowSpeedTime = 120\n"
	if u, err := url.Parse(rawURL); err == nil && u.User != nil && (u.Scheme == "http" || u.Scheme == "https") {
		server, login := u.Scheme+"://"+u.Host, u.User
		u.User = nil
		rawURL = u.String()
		if password, has := login.Password(); has {
			text := base64.StdEncoding.EncodeToString([]byte(login.Username() + ":" + password))
			settings += fmt.Sprintf("[http %s]\n\textraHeader = \"Authorization: Basic %s\"\n", configValue(server), text)
		} else {
			settings += fmt.Sprintf("[credential %s]\n\tusername = %s\n", configValue(server), configValue(login.Username()))
		}
	}
	settings += fmt.Sprintf("[remote \"origin\"]\n\turl = %s\n", configValue(rawURL))
	text, err := os.ReadFile(filepath.Join(dir, "config"))
	return r, errors.Join(err,
		os.WriteFile(filepath.Join(dir, "config"), append(text, settings...), 0o600),
		os.MkdirAll(filepath.Join(dir, "info"), 0o700),
		os.WriteFile(filepath.Join(dir, "info/attributes"), []byte(rawAttributes), 0o600))
}

// configValue writes a value, or the name of a section, for git's configuration.
func configValue(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
}

func needGit() error {
	if _, err := exec.LookPath("git"); err != nil {
		return fault.WithHint(errors.New("git is not installed"), "install git, or use a release or a source distribution")
	}
	return nil
}

// The user's GIT_ variables that are passed to git: for a remote repository, those that configure the connection; for a
// checkout, none that could name a program.
var (
	userVariables = regexp.MustCompile(`^GIT_(SSL_|SSH|PROXY_|HTTP_|CONFIG_|ALLOW_PROTOCOL$|EXEC_PATH$)`)
	noVariables   = regexp.MustCompile(`^GIT_EXEC_PATH$`)
)

// gitEnv returns the environment for git: the user's, with only the kept GIT_ variables. With it, git never prompts,
// uses only the given repositories, and writes nothing to a checkout.
func gitEnv(environ []string, kept *regexp.Regexp) []string {
	own := []string{
		"GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=", "SSH_ASKPASS=", "GIT_OPTIONAL_LOCKS=0", "GIT_NO_LAZY_FETCH=1",
		"LC_ALL=C",
	}
	allowed := "GIT_ALLOW_PROTOCOL=" + strings.Join(gitSchemes(), ":") // unless the user allows others
	env := []string{allowed}
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, "GIT_") || kept.MatchString(name) {
			env = append(env, kv)
		}
	}
	return append(env, own...)
}

// maxGitOutput limits the output of a git command in bytes. No real repository reaches it.
const maxGitOutput = 256 << 20

// runGit runs git in the repository and returns its output.
func (r repository) runGit(ctx context.Context, args ...string) ([]byte, error) {
	var out bytes.Buffer
	err := r.pipeGit(ctx, func(stdout io.Reader) error {
		n, err := io.Copy(&out, io.LimitReader(stdout, maxGitOutput+1))
		if err == nil && n > maxGitOutput {
			err = fmt.Errorf("git %s prints more than %d bytes", args[0], maxGitOutput) // pipeGit ends it
		}
		return err
	}, args...)
	return out.Bytes(), err
}

// pipeGit runs git and passes its output to read. If both fail, it returns the error of git,
// because the other may follow from it.
func (r repository) pipeGit(ctx context.Context, read func(io.Reader) error, args ...string) error {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir, cmd.Env = r.dir, r.env
	withHelpers(cmd)
	cmd.WaitDelay = 5 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("git: %w", err)
	}
	unread := read(stdout)
	_ = stdout.Close() // ends git if it is still writing
	err = cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil && (unread == nil || cmd.ProcessState.Exited()):
		return fmt.Errorf("git %s: %s", args[0], gitError(stderr.String(), err))
	}
	return unread
}

// gitError returns git's own text about its failure.
func gitError(stderr string, err error) string {
	var lines []string
	for line := range strings.Lines(redactURL(stderr)) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, strings.TrimPrefix(line, "fatal: "))
		}
	}
	if len(lines) == 0 {
		return err.Error()
	}
	return ui.Shorten(strings.Join(lines, "; "), 2000)
}

// commitOf returns the full hash of the commit that ref names here.
func (r repository) commitOf(ctx context.Context, ref string) (string, error) {
	out, err := r.runGit(ctx, "rev-parse", "--quiet", "--verify", ref+"^{commit}")
	return strings.TrimSpace(string(out)), err
}
