package publish_test

import (
	"bufio"
	"cmp"
	"crypto/hmac"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// store speaks the part of S3 that publishing needs, as its documentation says: signatures of
// version 4, bodies in signed chunks, conditions, ranges, and lists in pages.
type store struct {
	t       *testing.T
	secret  string
	bucket  string
	listed  int  // objects on a page of a list
	ignores bool // answers 501 to a condition, as some stores do

	mutex   sync.Mutex
	objects map[string]stored
	puts    int
	gets    []string
}

type stored struct {
	data []byte
	kind string
	etag string
}

const accessKey = "AKIATEST"

func newStore(t *testing.T) *store {
	return &store{t: t, secret: "s3-secret-key", bucket: "wheels", listed: 3, objects: map[string]stored{}}
}

// files returns the objects by name, without the prefix.
func (s *store) files(prefix string) map[string][]byte {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	all := map[string][]byte{}
	for name, o := range s.objects {
		if short, ok := strings.CutPrefix(name, prefix); ok {
			all[short] = o.data
		}
	}
	return all
}

func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := s.checkSignature(r); err != nil {
		s.refuse(w, http.StatusForbidden, "SignatureDoesNotMatch", err.Error())
		return
	}
	rest, ok := strings.CutPrefix(r.URL.Path, "/"+s.bucket)
	if !ok {
		s.refuse(w, http.StatusNotFound, "NoSuchBucket", "")
		return
	}
	key := strings.TrimPrefix(rest, "/")
	switch {
	case r.URL.Query().Has("location"):
		fmt.Fprint(w, `<LocationConstraint xmlns="http://s3.amazonaws.com/doc/2006-03-01/"></LocationConstraint>`)
	case r.Method == http.MethodPut:
		s.put(w, r, key)
	case r.Method == http.MethodDelete:
		s.mutex.Lock()
		delete(s.objects, key)
		s.mutex.Unlock()
		w.WriteHeader(http.StatusNoContent)
	case key == "":
		s.list(w, r.URL.Query())
	default:
		s.get(w, r, key)
	}
}

func (s *store) refuse(w http.ResponseWriter, code int, name, detail string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(code)
	fmt.Fprintf(w, "<Error><Code>%s</Code><Message>%s</Message></Error>", name, detail)
}

func (s *store) get(w http.ResponseWriter, r *http.Request, key string) {
	s.mutex.Lock()
	o, ok := s.objects[key]
	if r.Method == http.MethodGet {
		s.gets = append(s.gets, key)
	}
	s.mutex.Unlock()
	if !ok {
		s.refuse(w, http.StatusNotFound, "NoSuchKey", "")
		return
	}
	w.Header().Set("ETag", `"`+o.etag+`"`)
	w.Header().Set("Content-Type", o.kind)
	http.ServeContent(w, r, "", time.Unix(1_800_000_000, 0), strings.NewReader(string(o.data)))
}

func (s *store) put(w http.ResponseWriter, r *http.Request, key string) {
	isNew := r.Header.Get("If-None-Match") == "*"
	if isNew && s.ignores {
		s.refuse(w, http.StatusNotImplemented, "NotImplemented", "If-None-Match")
		return
	}
	data, err := readPayload(r)
	if err != nil {
		s.refuse(w, http.StatusBadRequest, "IncompleteBody", err.Error())
		return
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if _, exists := s.objects[key]; exists && isNew {
		s.refuse(w, http.StatusPreconditionFailed, "PreconditionFailed", "")
		return
	}
	sum := md5.Sum(data)
	o := stored{data, r.Header.Get("Content-Type"), hex.EncodeToString(sum[:])}
	s.objects[key] = o
	s.puts++
	w.Header().Set("ETag", `"`+o.etag+`"`)
}

// readPayload reads a body, which must be whole.
func readPayload(r *http.Request) ([]byte, error) {
	data, err := io.ReadAll(r.Body)
	if err != nil || !strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") {
		if sum := r.Header.Get("X-Amz-Content-Sha256"); err == nil && len(sum) == 64 && hexOf(data) != sum {
			err = errors.New("another sha256")
		}
		return data, err
	}
	var out []byte
	in := bufio.NewReader(strings.NewReader(string(data)))
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return nil, fmt.Errorf("no last chunk: %w", err)
		}
		size, _, _ := strings.Cut(strings.TrimSpace(line), ";")
		n, err := strconv.ParseInt(size, 16, 32)
		if err != nil {
			return nil, err
		}
		chunk := make([]byte, n+2)
		if _, err := io.ReadFull(in, chunk); err != nil {
			return nil, err
		}
		out = append(out, chunk[:n]...)
		if n == 0 {
			break
		}
	}
	if want := r.Header.Get("X-Amz-Decoded-Content-Length"); want != strconv.Itoa(len(out)) {
		return nil, fmt.Errorf("%d bytes instead of %s", len(out), want)
	}
	return out, nil
}

func hexOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func (s *store) list(w http.ResponseWriter, query url.Values) {
	type entry struct {
		Key, ETag, LastModified string
		Size                    int
	}
	var page struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		IsTruncated           bool
		NextContinuationToken string
		EncodingType          string `xml:",omitempty"`
		Contents              []entry
	}
	page.EncodingType = query.Get("encoding-type")
	s.mutex.Lock()
	defer s.mutex.Unlock()
	var keys []string
	for key := range s.objects {
		if strings.HasPrefix(key, query.Get("prefix")) && key > query.Get("continuation-token") {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	if page.IsTruncated = len(keys) > s.listed; page.IsTruncated {
		keys = keys[:s.listed]
		page.NextContinuationToken = keys[s.listed-1]
	}
	for _, key := range keys {
		o := s.objects[key]
		name := key
		if query.Get("encoding-type") == "url" {
			name = url.QueryEscape(key)
		}
		page.Contents = append(page.Contents, entry{name, `"` + o.etag + `"`, "2027-01-15T08:00:00.000Z", len(o.data)})
	}
	w.Header().Set("Content-Type", "application/xml")
	_ = xml.NewEncoder(w).Encode(page) // the client is gone
}

// checkSignature computes the signature of a request anew.
func (s *store) checkSignature(r *http.Request) error {
	fields := map[string]string{}
	rest, ok := strings.CutPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ")
	for part := range strings.SplitSeq(rest, ",") {
		key, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		fields[key] = value
	}
	scope := strings.Split(fields["Credential"], "/")
	if !ok || len(scope) != 5 || scope[0] != accessKey {
		return errors.New("no signature by " + accessKey)
	}
	var headers strings.Builder
	for name := range strings.SplitSeq(fields["SignedHeaders"], ";") {
		value := strings.Join(r.Header.Values(name), ",")
		switch name {
		case "host":
			value = r.Host
		case "content-length":
			value = cmp.Or(value, strconv.FormatInt(r.ContentLength, 10))
		}
		fmt.Fprintf(&headers, "%s:%s\n", name, strings.Join(strings.Fields(value), " "))
	}
	query := strings.ReplaceAll(r.URL.Query().Encode(), "+", "%20")
	path := strings.ReplaceAll(r.URL.EscapedPath(), "+", "%2B")
	canonical := strings.Join([]string{r.Method, path, query, headers.String(), fields["SignedHeaders"], r.Header.Get("X-Amz-Content-Sha256")}, "\n")
	toSign := strings.Join([]string{"AWS4-HMAC-SHA256", r.Header.Get("X-Amz-Date"), strings.Join(scope[1:], "/"), hexOf([]byte(canonical))}, "\n")
	key := []byte("AWS4" + s.secret)
	for _, part := range scope[1:] {
		key = mac(key, part)
	}
	if got := hex.EncodeToString(mac(key, toSign)); got != fields["Signature"] {
		return errors.New("the signature is wrong for\n" + canonical)
	}
	return nil
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	io.WriteString(h, text)
	return h.Sum(nil)
}
