package pyindex

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"regexp"
	"strings"

	"deps.dev/util/pypi"
	"golang.org/x/net/html"
)

// link is a link to a file in a page.
type link struct {
	name, address string
	sha256        string
	size          int64
	yanked        bool
	reason        string
}

// flag is true for the JSON value true or a string.
type flag struct {
	set  bool
	text string
}

// UnmarshalJSON implements json.Unmarshaler.
func (f *flag) UnmarshalJSON(text []byte) error {
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		return err
	}
	switch v := value.(type) {
	case bool:
		f.set = v
	case string:
		f.set, f.text = true, v
	}
	return nil
}

// readHTML reads a page of PEP 503: the links of a document.
func readHTML(text []byte) ([]link, error) {
	var links []link
	base := ""
	tokens := html.NewTokenizer(bytes.NewReader(text))
	tokens.SetMaxBuf(1 << 20)
	for {
		kind := tokens.Next()
		if kind == html.ErrorToken {
			if err := tokens.Err(); !errors.Is(err, io.EOF) {
				return nil, fmt.Errorf("invalid HTML: %w", err)
			}
			return links, nil
		}
		if kind != html.StartTagToken && kind != html.SelfClosingTagToken {
			continue
		}
		switch t := tokens.Token(); t.Data {
		case "base":
			base = attributes(t)["href"]
		case "a":
			// Read a link to a file. The file's name is the end of the link's path.
			has := attributes(t)
			l := link{address: has["href"]}
			if at, err := url.Parse(l.address); err == nil {
				if root, err := url.Parse(base); err == nil && base != "" {
					at = root.ResolveReference(at)
					l.address = at.String()
				}
				l.name = path.Base(at.Path)
				l.sha256 = strings.TrimPrefix(at.Fragment, "sha256=")
			}
			l.reason, l.yanked = has["data-yanked"]
			links = append(links, l)
		}
	}
}

func attributes(t html.Token) map[string]string {
	out := map[string]string{}
	for _, a := range t.Attr {
		out[a.Key] = a.Val
	}
	return out
}

// maxDots limits the number of tags that a wheel's name can expand to.
const maxDots = 16

var (
	digest = regexp.MustCompile(`^[0-9a-fA-F]{64}$`)
	// plain matches the file names that installers accept if they have no more than 256 bytes.
	plain = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+!-]*$`)
)

// file returns the distribution behind a link, and whether it is a file of the project.
func (l link) file(page *url.URL, project string) (File, bool) {
	at, err := page.Parse(l.address)
	if err != nil || at.Scheme != "https" && at.Scheme != "http" || len(l.name) > 256 || !plain.MatchString(l.name) {
		return File{}, false
	}
	at.Fragment, at.RawFragment = "", ""
	f := File{Name: l.name, Size: max(0, l.size), Yanked: l.yanked, Reason: l.reason, url: at}
	if digest.MatchString(l.sha256) {
		f.SHA256 = strings.ToLower(l.sha256)
	}
	if strings.HasSuffix(l.name, ".whl") && strings.Count(l.name, ".") <= maxDots {
		info, err := pypi.ParseWheelName(l.name)
		if err != nil || pypi.CanonPackageName(info.Name) != project {
			return File{}, false
		}
		f.Wheel, f.Version = info, info.Version
		return f, f.Version != ""
	}
	if !strings.HasSuffix(l.name, ".tar.gz") && !strings.HasSuffix(l.name, ".zip") {
		return File{}, false
	}
	_, f.Version, err = pypi.SdistVersion(project, l.name)
	return f, err == nil && f.Version != ""
}
