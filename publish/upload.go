package publish

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime/multipart"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

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

// simpleIndexes are the indexes that list the files of those whose address is well known.
func simpleIndexes() map[string]string {
	return map[string]string{
		"https://upload.pypi.org/legacy/": "https://pypi.org/simple/",
		"https://test.pypi.org/legacy/":   "https://test.pypi.org/simple/",
	}
}

// openIndex opens an index; said is the login that ~/.pypirc has for it.
func (r *run) openIndex(address string, said login) (place, error) {
	l, err := r.loginFor(address, said)
	if err != nil {
		return nil, err
	}
	p := &uploadIndex{run: r, address: address, login: l, check: r.CheckURL}
	if p.check == "" {
		p.check = simpleIndexes()[address]
	}
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

func (p *uploadIndex) access() string {
	return "dsbuild takes TWINE_USERNAME and TWINE_PASSWORD, the section of ~/.pypirc (pypirc:NAME), or ~/.netrc"
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
	err = f.withBody(sent, func(b *body) error {
		form := io.MultiReader(bytes.NewReader(head), b, bytes.NewReader(tail))
		return p.post(ctx, kind, form, int64(len(head))+f.Size+int64(len(tail)))
	})
	if taken := new(takenError); !errors.As(err, &taken) {
		return err
	}
	if p.check == "" {
		const try = "give --check-url, the simple index that lists what is there: then dsbuild compares the bytes, and sends no file twice"
		return &ConflictError{[]string{f.Name}, try}
	}
	return compareTaken(ctx, p.lookFile, f, err)
}

// maxAnswer is how many bytes of an answer to an upload are read.
const maxAnswer = 1 << 20

// post sends a form. It follows no redirect: that would take the file and the login to another server.
func (p *uploadIndex) post(ctx context.Context, kind string, form io.Reader, size int64) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.address, io.NopCloser(form))
	if err != nil {
		return fmt.Errorf("%s: it is not the address of a server", withoutLogin(p.address))
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
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil || res.StatusCode/100 == 2 {
		return err
	}
	refused := &httpclient.StatusError{Where: p.address, Status: res.Status, Code: res.StatusCode}
	if to := res.Header.Get("Location"); res.StatusCode/100 == 3 && to != "" {
		refused.Detail = "it moved to " + to
	} else if !strings.Contains(res.Header.Get("Content-Type"), "html") {
		detail := p.run.secrets.hideText(string(text))
		refused.Detail = ui.Shorten(strings.Join(strings.Fields(detail), " "), 300)
	}
	if saysTaken(res, text) {
		return &takenError{refused}
	}
	return refused
}

// takenError is the refusal of a file whose name the index has already.
type takenError struct{ *httpclient.StatusError }

func (e *takenError) Unwrap() error { return e.StatusError }

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

// uploadForm returns the parts of the form before and after the file, and its type.
func uploadForm(f File) (head, tail []byte, kind string, err error) {
	fields, err := uploadFields(f)
	if err != nil {
		return nil, nil, "", err
	}
	var out bytes.Buffer
	form := multipart.NewWriter(&out)
	for _, field := range fields {
		if err := form.WriteField(field[0], field[1]); err != nil {
			return nil, nil, "", err
		}
	}
	if _, err := form.CreateFormFile("content", f.Name); err != nil {
		return nil, nil, "", err
	}
	before := out.Len()
	if err := form.Close(); err != nil {
		return nil, nil, "", err
	}
	return out.Bytes()[:before], out.Bytes()[before:], form.FormDataContentType(), nil
}

// uploadFields returns the fields of the form: the wheel's METADATA, and its digests.
func uploadFields(f File) ([][2]string, error) {
	parts := strings.Split(strings.TrimSuffix(filepath.Base(f.Path), ".whl"), "-")
	fields := [][2]string{
		{":action", "file_upload"},
		{"protocol_version", "1"},
		{"filetype", "bdist_wheel"},
		{"pyversion", parts[len(parts)-3]},
		{"sha256_digest", f.SHA256},
	}
	in := bufio.NewReader(bytes.NewReader(f.metadata))
	header, err := textproto.NewReader(in).ReadMIMEHeader()
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: METADATA: %w", f.Path, err)
	}
	for _, key := range slices.Sorted(maps.Keys(header)) {
		for _, value := range header[key] {
			fields = append(fields, [2]string{formField(key), value})
		}
	}
	description, err := io.ReadAll(in)
	if len(description) > 0 && header.Get("Description") == "" {
		fields = append(fields, [2]string{"description", string(description)})
	}
	return fields, err
}

// formField returns the field of the form for a field of METADATA.
func formField(key string) string {
	switch name := strings.ReplaceAll(strings.ToLower(key), "-", "_"); name {
	case "classifier":
		return "classifiers"
	case "project_url":
		return "project_urls"
	default:
		return name
	}
}
