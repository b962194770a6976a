package pipeline

import (
	"bytes"
	"cmp"
	"context"
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

	"github.com/dsbuild/dsbuild/internal/diagnostic"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

// gitRef is a repository and the requested tag, branch or commit.
type gitRef struct {
	url   string // as the user gave it: it may hold credentials
	ref   string // tag, branch or commit; "" for the branch of the repository's HEAD
	shown string // for people: "git+URL@REF" without credentials
}

// gitSchemes returns the allowed schemes of repositories. Others can run programs (ext::) or are
// not verified.
func gitSchemes() []string { return []string{"https", "http", "ssh", "file"} }

var (
	scpLike  = regexp.MustCompile(`^([A-Za-z0-9._-]+@)?[A-Za-z0-9][A-Za-z0-9.-]*:[^-:]`)
	goodRef  = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_./+=,%#@-]*$`)
	hexRef   = regexp.MustCompile(`^[0-9a-f]{4,64}$`)
	userinfo = regexp.MustCompile(`://\S*@`) // a password may hold a slash that nobody has quoted
	scpUser  = regexp.MustCompile(`^[^/@:\s]+@([^/:\s]+:)`)
)

// redactURL removes credentials from a URL or an error of git. It takes all of a URL before an @ for a
// password: it is not for text in which @REF follows a URL (see diagnostic.HideCredentials).
func redactURL(text string) string {
	text = userinfo.ReplaceAllString(text, "://")
	return diagnostic.HideCredentials(scpUser.ReplaceAllString(text, "$1"))
}

// parseGit reads URL[@REF], the text after "git+".
func parseGit(arg string) (gitRef, error) {
	g := gitRef{}
	g.url, g.ref = wheel.SplitGitRef(arg)
	scheme, _, ok := strings.Cut(arg, "://")
	g.shown = "git+" + redactURL(g.url)
	fail := func(format string, args ...any) (gitRef, error) {
		return gitRef{}, &SourceError{g.shown, fmt.Errorf(format, args...), "write git+https://HOST/PATH@REF, git+ssh://HOST/PATH@REF or git+file:///PATH@REF; REF is a tag, a branch or a commit"}
	}
	switch {
	case strings.ContainsFunc(arg, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return fail("a space or a control character in it")
	case strings.HasPrefix(arg, "-") || !ok && strings.Contains(arg, "::"):
		return fail("not the URL of a repository")
	case ok && !slices.Contains(gitSchemes(), scheme):
		return fail("dsbuild does not read repositories with %q", scheme)
	case !ok && !scpLike.MatchString(g.url):
		return fail("not the URL of a repository")
	case strings.ContainsAny(g.url, "#"):
		return fail("dsbuild does not understand the text after #")
	case g.url != arg && (!goodRef.MatchString(g.ref) || strings.Contains(g.ref, "..")):
		return fail("%.80q is not a tag, branch or commit", g.ref)
	}
	if ok {
		if reason := g.refuseURL(); reason != "" {
			return fail("%s", reason)
		}
	}
	if g.ref != "" {
		g.shown += "@" + g.ref
	}
	return g, nil
}

// refuseURL returns why a URL cannot be used, "" if it can. The reason never quotes the URL,
// which may hold a password.
func (g gitRef) refuseURL() string {
	u, err := url.Parse(g.url)
	if err != nil || strings.HasPrefix(u.Host, "-") || strings.Trim(u.Path, "/") == "" || u.Host == "" && u.Scheme != "file" {
		return "not the URL of a repository"
	}
	password, hasPassword := u.User.Password()
	switch web := u.Scheme == "http" || u.Scheme == "https"; {
	case strings.ContainsFunc(u.User.Username()+password, unicode.IsControl):
		return "a control character in the user's name or the password"
	case hasPassword && !web:
		return "a password in a URL of " + u.Scheme + " has no effect, and every user of this machine could read it: use a key"
	case u.RawQuery != "" && web:
		return "git puts the text after ? on a command line, which every user of this machine can read: write a token before the host, https://TOKEN@HOST/PATH"
	}
	return ""
}

// unpackCommit fetches the commit into a new repository, and unpacks its files into root.
func (g gitRef) unpackCommit(ctx context.Context, clone string, root *os.Root, environ []string) (commit string, err error) {
	defer os.RemoveAll(clone) //nolint:errcheck // it lies in a folder that the caller removes
	repo, err := newRepository(ctx, clone, g.url, environ)
	if err != nil {
		return "", err
	}
	if commit, err = g.fetchCommit(ctx, repo, environ); err != nil {
		return "", err
	}
	if err := repo.refuseSubmodules(ctx, commit); err != nil {
		return "", err
	}
	return commit, repo.pipeGit(ctx, func(out io.Reader) error { return unpackTar(ctx, out, root) },
		"archive", "--format=tar", "--prefix=tree/", commit)
}

// refuseSubmodules refuses a commit with submodules, because it is not complete by itself.
func (r repository) refuseSubmodules(ctx context.Context, commit string) error {
	out, err := r.runGit(ctx, "ls-tree", "-r", "-z", commit)
	if err != nil {
		return err
	}
	for entry := range strings.SplitSeq(string(out), "\x00") {
		if _, name, ok := strings.Cut(entry, "\t"); ok && strings.HasPrefix(entry, submoduleMode) {
			return fault.WithHint(fmt.Errorf("%s is a submodule, and dsbuild does not fetch submodules", name),
				"clone it with --recurse-submodules, and give the directory")
		}
	}
	return nil
}

// git's texts about a reference that the repository does not have, and about a connection that broke.
var (
	unknownName = regexp.MustCompile(`couldn't find remote ref|not our ref`)
	brokenOff   = regexp.MustCompile(`early EOF|RPC failed|timed out|Connection reset|hung up|returned error: 5`)
)

// fetchCommit fetches the requested commit, without its history.
func (g gitRef) fetchCommit(ctx context.Context, repo repository, environ []string) (string, error) {
	commit, err := repo.fetchOne(ctx, cmp.Or(g.ref, "HEAD"))
	if err == nil {
		return commit, nil
	}
	var refs []string
	if unknownName.MatchString(err.Error()) {
		if refs, err = repo.remoteRefs(ctx); err == nil {
			if commit = g.fullHash(ctx, repo.dir+".history", environ); commit != "" {
				return repo.fetchOne(ctx, commit)
			}
			return "", unknownRef(cmp.Or(g.ref, "HEAD"), refs)
		}
	}
	return "", fault.WithHint(&unreachable{err},
		"try: git ls-remote %s; dsbuild asks for no password, but uses git's credential helpers, keys and proxies", redactURL(g.url))
}

// fetchOne fetches the commit that name is at origin. If the connection breaks, it tries once more.
func (r repository) fetchOne(ctx context.Context, name string) (commit string, err error) {
	for range 2 {
		_, err = r.runGit(ctx, "fetch", "--quiet", "--depth=1", "--no-tags", "origin", name)
		if err == nil {
			return r.commitOf(ctx, "FETCH_HEAD")
		}
		if !brokenOff.MatchString(err.Error()) {
			break
		}
	}
	return "", err
}

// unreachable is a repository that may be right, but does not answer.
type unreachable struct{ err error }

func (e *unreachable) Error() string { return "the repository cannot be read: " + e.err.Error() }
func (e *unreachable) Unwrap() error { return e.err }

// fullHash returns the hash of the commit whose abbreviated hash is asked for, from the history without
// any content; "" if there is none.
func (g gitRef) fullHash(ctx context.Context, clone string, environ []string) string {
	if !hexRef.MatchString(g.ref) {
		return ""
	}
	defer os.RemoveAll(clone) //nolint:errcheck // it lies in a folder that is removed
	repo, err := newRepository(ctx, clone, g.url, environ)
	if err != nil {
		return ""
	}
	if _, err := repo.runGit(ctx, "fetch", "--quiet", "--no-tags", "--filter=tree:0", "origin", "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"); err != nil {
		return ""
	}
	commit, err := repo.commitOf(ctx, g.ref)
	if err != nil {
		return ""
	}
	return commit
}

// unknownRef returns the error for a reference that the repository does not have. refs are those that it
// has, the newest tags first.
func unknownRef(ref string, refs []string) error {
	err := fmt.Errorf("it has no tag, branch or commit %s", ref)
	if len(refs) == 0 {
		return fault.WithHint(err, "the repository is empty")
	}
	few := "it has " + strings.Join(refs[:min(len(refs), 5)], ", ")
	return fault.WithHint(err, "%s", cmp.Or(diagnostic.DidYouMean(ref, refs), few))
}

// repository is a git repository on this machine.
type repository struct {
	dir string
	env []string
}

// rawAttributes, as $GIT_DIR/info/attributes, override the attributes that a tree brings: git writes and
// compares the bytes of the commit, and runs no filter.
const rawAttributes = "* -text -filter -ident -working-tree-encoding -export-subst -export-ignore\n"

// newRepository makes an empty one that knows rawURL as origin. A password of the
// URL is in a file that only this user can read, and goes to the server by git's
// own credential helper: git has the rest of the URL on command lines, which
// everyone on this machine sees.
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
	// a command of the user's own is left alone.
	own, _ := r.runGit(ctx, "config", "core.sshCommand") // status 1: not set
	chosen := func(kv string) bool {
		return strings.HasPrefix(kv, "GIT_SSH_COMMAND=") || strings.HasPrefix(kv, "GIT_SSH=")
	}
	if !slices.ContainsFunc(environ, chosen) && len(bytes.TrimSpace(own)) == 0 {
		r.env = append(r.env, "GIT_SSH_COMMAND=ssh -oBatchMode=yes -oConnectTimeout=30 -oServerAliveInterval=20")
	}
	settings, credentials := originSettings(rawURL)
	// Settings of the user for the end of lines or archives would change the copy.
	settings += "[core]\n\tautocrlf = false\n\teol = lf\n\tattributesFile = " + os.DevNull + "\n[tar]\n\tumask = 0\n"
	// A server that sends nothing at all is down; one that is at work sends at least five bytes in five seconds.
	settings += "[http]\n\tlowSpeedLimit = 1\n\tlowSpeedTime = 120\n"
	if credentials != "" {
		if err := os.WriteFile(filepath.Join(dir, credentialsFile), []byte(credentials), 0o600); err != nil {
			return r, err
		}
	}
	return r, errors.Join(writeNew(filepath.Join(dir, "info/attributes"), rawAttributes), appendFile(filepath.Join(dir, "config"), settings))
}

// credentialsFile lies in a repository of newRepository, the folder that git and
// its helpers run in.
const credentialsFile = "dsbuild-credentials"

// originSettings returns git's settings for rawURL as origin, and the text of the credentials
// file, "" if the URL has no password. For ssh, the user's name is a part of the address.
func originSettings(rawURL string) (settings, credentials string) {
	origin := func(address string) string {
		return fmt.Sprintf("[remote \"origin\"]\n\turl = %s\n", configValue(address))
	}
	u, err := url.Parse(rawURL)
	if err != nil || u.User == nil || u.Scheme != "http" && u.Scheme != "https" {
		return origin(rawURL), ""
	}
	login, server := u.User, url.URL{Scheme: u.Scheme, Host: u.Host}
	u.User = nil
	settings = origin(u.String()) + fmt.Sprintf("[credential %s]\n", configValue(server.String()))
	if user := login.Username(); user != "" {
		settings += fmt.Sprintf("\tusername = %s\n", configValue(user))
	}
	if _, hasPassword := login.Password(); hasPassword {
		// The empty helper removes the user's own helpers, so that none of them stores this
		// password.
		settings += "\thelper =\n\thelper = store --file=" + credentialsFile + "\n\tuseHttpPath = false\n"
		server.User = login
		credentials = server.String() + "\n"
	}
	return settings, credentials
}

// configValue writes a value, or the name of a section, for git's configuration.
func configValue(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
}

func appendFile(file, text string) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, text)
	return errors.Join(err, f.Close())
}

// writeNew writes a file, and the folder that it lies in.
func writeNew(file, text string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text), 0o600)
}

func needGit() error {
	if _, err := exec.LookPath("git"); err != nil {
		return fault.WithHint(errors.New("git is not installed"), "install git, or give a release or a source distribution")
	}
	return nil
}

// The variables of git that it gets from the user's environment: for a repository of the network, those that
// say how to reach it; for a checkout, none that could name a program.
var (
	userVariables = regexp.MustCompile(`^GIT_(SSL_|SSH|PROXY_|HTTP_|CONFIG_|ALLOW_PROTOCOL$|EXEC_PATH$)`)
	noVariables   = regexp.MustCompile(`^GIT_EXEC_PATH$`)
)

// gitEnv returns the environment for git, with only the kept ones of its variables. With it, git never asks
// the user, uses no repository but those that it is given, and writes nothing to a checkout.
func gitEnv(environ []string, kept *regexp.Regexp) []string {
	own := []string{"GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=", "SSH_ASKPASS=", "GIT_OPTIONAL_LOCKS=0", "GIT_NO_LAZY_FETCH=1", "LC_ALL=C"}
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

// submoduleMode begins git's line about a submodule.
const submoduleMode = "160000 "

// maxGitOutput bounds the output of a command of git in bytes. No honest repository reaches it.
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
	_ = stdout.Close() // if git still writes, it ends
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

// remoteRefs lists the tags at origin, those of the newest versions first, and then the branches.
func (r repository) remoteRefs(ctx context.Context) ([]string, error) {
	out, err := r.runGit(ctx, "ls-remote", "--quiet", "--refs", "--heads", "--tags", "--sort=-version:refname", "origin")
	var refs []string
	for line := range strings.Lines(string(out)) {
		_, name, _ := strings.Cut(strings.TrimSpace(line), "\t")
		refs = append(refs, strings.TrimPrefix(strings.TrimPrefix(name, "refs/tags/"), "refs/heads/"))
	}
	return refs, err
}
