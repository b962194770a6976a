package publish

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
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

	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/internal/pyindex"
	"github.com/dsbuild/dsbuild/wheel"
)

// uploadIndex is a package index that takes uploads as twine sends them: one form for each file.
type uploadIndex struct {
	run     *run
	caller  *caller
	address string
	check   string // the simple index that lists its files; "": unknown
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
	p := &uploadIndex{run: r, caller: newCaller(r.Transport), address: address, check: r.CheckURL}
	if p.check == "" {
		p.check = simpleIndexes()[address]
	}
	at, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	if l.password != "" {
		if at.Scheme == "http" && !isLoopback(at.Hostname()) {
			r.Warn("%s is not encrypted: others on the network can read the password", address)
		}
		p.caller.header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(l.user+":"+l.password)))
	}
	return eachFile{r, p}, nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
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
	files, err := pyindex.New(p.checkTransport()).Files(ctx, p.check, name.Name)
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
		return absent, fmt.Errorf("%s lists %s without its sha256", p.check, f.Name)
	case files[i].SHA256 != f.SHA256:
		return other, nil
	}
	return same, nil
}

// checkTransport sends the login to the simple index too, if it is on the same server.
func (p *uploadIndex) checkTransport() http.RoundTripper {
	a, errA := url.Parse(p.address)
	b, errB := url.Parse(p.check)
	if errA != nil || errB != nil || a.Scheme != b.Scheme || a.Host != b.Host {
		return p.run.Transport
	}
	return &withHeader{p.run.Transport, p.caller.header, a.Host}
}

// withHeader adds a header to the requests to one host.
type withHeader struct {
	base   http.RoundTripper
	header http.Header
	host   string
}

func (t *withHeader) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Host == t.host {
		req = req.Clone(req.Context())
		for key := range t.header {
			req.Header.Set(key, t.header.Get(key))
		}
	}
	return t.base.RoundTrip(req)
}

// putFile uploads a wheel.
func (p *uploadIndex) putFile(ctx context.Context, f File, sent func(int64)) error {
	head, tail, kind, err := uploadForm(f)
	if err != nil {
		return err
	}
	err = f.withBody(sent, func(b *body) error {
		return p.caller.do(ctx, request{
			method: http.MethodPost, address: p.address, kind: kind,
			body: io.MultiReader(bytes.NewReader(head), b, bytes.NewReader(tail)), size: int64(len(head)) + f.Size + int64(len(tail)),
		}, nil)
	})
	if !saysTaken(err) {
		return err
	}
	if p.check == "" {
		return hint.With(&ConflictError{[]string{f.Name}}, "give --check-url, the simple index that lists what is there: then dsbuild compares the bytes, and sends no file twice")
	}
	return compareTaken(ctx, p.lookFile, f, err)
}

// saysTaken reports whether an index refused a file because it has one of that name. PyPI and
// Nexus answer 400, pypiserver and devpi 409, Artifactory 403.
func saysTaken(err error) bool {
	refused := new(statusError)
	if !errors.As(err, &refused) {
		return false
	}
	text := strings.ToLower(refused.status + " " + refused.detail)
	switch refused.code {
	case http.StatusConflict:
		return true
	case http.StatusBadRequest, http.StatusForbidden:
		for _, words := range []string{"already exist", "updating asset", "already been taken", "overwrite"} {
			if strings.Contains(text, words) {
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
	a, err := wheel.Open(f.Path)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	text, err := a.MetadataText()
	if err != nil {
		return nil, err
	}
	parts := strings.Split(strings.TrimSuffix(filepath.Base(f.Path), ".whl"), "-")
	fields := [][2]string{
		{":action", "file_upload"},
		{"protocol_version", "1"},
		{"filetype", "bdist_wheel"},
		{"pyversion", parts[len(parts)-3]},
		{"sha256_digest", f.SHA256},
	}
	in := bufio.NewReader(bytes.NewReader(text))
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
