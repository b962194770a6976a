package publish

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"mime/multipart"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"gopkg.in/ini.v1"

	"github.com/dsbuild/dsbuild/internal/httpclient"
	"github.com/dsbuild/dsbuild/internal/pyindex"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

// uploadIndex is a package index that takes uploads as twine sends them: one form for each file.
type uploadIndex struct {
	run     *run
	address string
	login   login
	check   string // the simple index that lists its files, with the login if it is on the same server; "": unknown
}

// openPypirc opens the index that ~/.pypirc names.
func (r *run) openPypirc(name string) (place, error) {
	address := map[string]string{"pypi": "https://upload.pypi.org/legacy/", "testpypi": "https://test.pypi.org/legacy/"}[name]
	conf, err := ini.LoadSources(ini.LoadOptions{IgnoreInlineComment: true, SkipUnrecognizableLines: true}, filepath.Join(r.Home, ".pypirc"))
	const orAddress = ", or give https://HOST/PATH"
	switch path := new(fs.PathError); {
	case errors.Is(err, fs.ErrNotExist) && address != "":
		return r.openIndex(address, login{})
	case errors.Is(err, fs.ErrNotExist):
		return nil, r.refuse("create it with a section ["+name+"]"+orAddress, "~/.pypirc is not there")
	case errors.As(err, &path):
		return nil, r.refuse("correct it"+orAddress, "~/.pypirc cannot be read: %w", path.Err)
	case err != nil: // the parser quotes lines, which may hold a password
		return nil, r.refuse("correct it"+orAddress, "~/.pypirc is not a file of sections with NAME = VALUE")
	case !conf.HasSection(name) && address == "":
		return nil, r.refuse("add one"+orAddress, "~/.pypirc has no section [%s]", name)
	}
	said := conf.Section(name)
	if address = cmp.Or(said.Key("repository").String(), address); address == "" {
		return nil, r.refuse("add repository = https://HOST/PATH"+orAddress, "~/.pypirc has no repository in the section [%s]", name)
	}
	l := login{said.Key("username").String(), said.Key("password").String()}
	r.secrets.addLogin(l)
	if t, err := ParseTarget(address); err != nil || t.kind != indexKind {
		return nil, r.refuse("correct repository in ~/.pypirc: https://HOST/PATH",
			"~/.pypirc gives it the repository %q, which is not the address of an index", withoutLogin(address))
	}
	return r.openIndex(address, l)
}

// openIndex opens an index. The login of the environment comes before l, that of ~/.pypirc.
func (r *run) openIndex(address string, l login) (place, error) {
	r.access = "dsbuild takes TWINE_USERNAME and TWINE_PASSWORD, or the section of ~/.pypirc (pypirc:NAME)"
	l.user, l.password = cmp.Or(r.Getenv("TWINE_USERNAME"), l.user), cmp.Or(r.Getenv("TWINE_PASSWORD"), l.password)
	if l.password != "" && l.user == "" {
		l.user = "__token__" // the user of a token
	}
	r.secrets.addLogin(l)
	// The indexes that list the files of those whose address is well known.
	p := &uploadIndex{run: r, address: address, login: l, check: cmp.Or(r.CheckURL, map[string]string{
		"https://upload.pypi.org/legacy/": "https://pypi.org/simple/",
		"https://test.pypi.org/legacy/":   "https://test.pypi.org/simple/",
	}[address])}
	at, err := url.Parse(address)
	if err != nil || l.password == "" {
		return eachFile{r, p}, err
	}
	if ip := net.ParseIP(at.Hostname()); at.Scheme == "http" && at.Hostname() != "localhost" && !ip.IsLoopback() {
		r.Warn("%s is not encrypted: others on the network can read the password", address)
	}
	if check, err := url.Parse(p.check); err == nil && check.Scheme == at.Scheme && check.Host == at.Host {
		check.User = url.UserPassword(l.user, l.password)
		p.check = check.String()
	}
	return eachFile{r, p}, nil
}

// lookFile finds a wheel in the simple index. Without one, only the upload can tell.
func (p *uploadIndex) lookFile(ctx context.Context, f File) (state, error) {
	name, err := wheel.ParseFileName(f.Name)
	if err != nil {
		return unsupported, nil //nolint:nilerr // a file beside a wheel
	}
	if p.check == "" {
		return absent, nil
	}
	files, err := pyindex.New(p.run.http).Files(ctx, p.check, name.Name)
	if errors.Is(err, pyindex.ErrNoProject) {
		return absent, nil
	}
	if err != nil {
		return absent, err
	}
	i := slices.IndexFunc(files, func(there pyindex.File) bool { return there.Name == f.Name })
	switch {
	case i < 0:
		return absent, nil
	case files[i].SHA256 == "":
		return absent, fmt.Errorf("%s lists %s without its sha256", withoutLogin(p.check), f.Name)
	case files[i].SHA256 != f.SHA256:
		return other, nil
	}
	return same, nil
}

// putFile uploads a wheel.
func (p *uploadIndex) putFile(ctx context.Context, f File, sent func(int64)) error {
	head, tail, kind, err := uploadForm(f)
	if err != nil {
		return err
	}
	taken := false
	err = f.withBody(sent, func(b *body) (err error) {
		form := io.MultiReader(bytes.NewReader(head), b, bytes.NewReader(tail))
		taken, err = p.post(ctx, kind, form, int64(len(head))+f.Size+int64(len(tail)))
		return err
	})
	switch {
	case !taken:
		return err
	case p.check == "":
		return takenError("give --check-url, the simple index that lists what is there: then dsbuild compares the bytes, and sends no file twice", f.Name)
	}
	return compareTaken(ctx, p, f, err)
}

// maxAnswer bounds the answer to an upload, in bytes. Of a longer one nothing is shown: what it was cut at
// may be a secret, of which a part would be left.
const maxAnswer = 1 << 20

// post sends a form, and reports whether the index refused it because it has a file of that name. It
// follows no redirect: that would take the file and the login to another server.
func (p *uploadIndex) post(ctx context.Context, kind string, form io.Reader, size int64) (taken bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.address, io.NopCloser(form))
	if err != nil {
		return false, fmt.Errorf("%s: it is not the address of a server", withoutLogin(p.address))
	}
	req.ContentLength = size
	req.Header.Set("Content-Type", kind)
	req.Header.Set("User-Agent", "dsbuild")
	if p.login.password != "" {
		req.SetBasicAuth(p.login.user, p.login.password)
	}
	client := &http.Client{Transport: p.run.http, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		return false, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	if err != nil || res.StatusCode/100 == 2 {
		return false, err
	}
	refused := &httpclient.StatusError{Where: p.address, Status: res.Status, Code: res.StatusCode}
	if to := res.Header.Get("Location"); res.StatusCode/100 == 3 && to != "" {
		refused.Detail = "it moved to " + to
	} else if !strings.Contains(res.Header.Get("Content-Type"), "html") && len(text) <= maxAnswer {
		detail := p.run.secrets.hideText(string(text))
		refused.Detail = ui.Shorten(strings.Join(strings.Fields(detail), " "), 300)
	}
	return saysTaken(res, text), refused
}

// saysTaken reports whether an index refused a file because it has one of that name. PyPI and
// Nexus answer 400, pypiserver and devpi 409, Artifactory 403.
func saysTaken(res *http.Response, text []byte) bool {
	switch res.StatusCode {
	case http.StatusConflict:
		return true
	case http.StatusBadRequest, http.StatusForbidden:
		said := strings.ToLower(res.Status + " " + string(text))
		for _, words := range []string{"already exist", "updating asset", "already been taken", "overwrite"} {
			if strings.Contains(said, words) {
				return true
			}
		}
	}
	return false
}

// uploadForm returns the parts of the form before and after the file, and its type. The fields are the
// wheel's METADATA, and its digest.
func uploadForm(f File) (head, tail []byte, kind string, err error) {
	parts := strings.Split(strings.TrimSuffix(filepath.Base(f.Path), ".whl"), "-")
	var out bytes.Buffer
	form := multipart.NewWriter(&out)
	add := func(name, value string) { err = errors.Join(err, form.WriteField(name, value)) }
	add(":action", "file_upload")
	add("protocol_version", "1")
	add("filetype", "bdist_wheel")
	add("pyversion", parts[len(parts)-3])
	add("sha256_digest", f.SHA256)
	a, failed := wheel.Open(f.Path)
	if failed != nil {
		return nil, nil, "", failed
	}
	metadata, failed := a.MetadataText()
	if failed = errors.Join(failed, a.Close()); failed != nil {
		return nil, nil, "", failed
	}
	in := bufio.NewReader(bytes.NewReader(metadata))
	header, failed := textproto.NewReader(in).ReadMIMEHeader()
	if failed != nil && !errors.Is(failed, io.EOF) {
		return nil, nil, "", fmt.Errorf("%s: METADATA: %w", f.Path, failed)
	}
	for _, key := range slices.Sorted(maps.Keys(header)) {
		name := strings.ReplaceAll(strings.ToLower(key), "-", "_")
		if name == "classifier" || name == "project_url" {
			name += "s" // as the form calls them
		}
		for _, value := range header[key] {
			add(name, value)
		}
	}
	description, failed := io.ReadAll(in)
	if len(description) > 0 && header.Get("Description") == "" {
		add("description", string(description))
	}
	_, last := form.CreateFormFile("content", f.Name)
	before := out.Len()
	err = errors.Join(err, failed, last, form.Close())
	return out.Bytes()[:before], out.Bytes()[before:], form.FormDataContentType(), err
}
