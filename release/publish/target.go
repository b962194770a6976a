package publish

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/dsbuild/dsbuild/internal/each"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/httpclient"
)

// kind is the kind of a place.
type kind int

const (
	folderKind kind = iota
	bucketKind
	indexKind  // its address is known
	pypircKind // ~/.pypirc knows its address
	registryKind
)

// Target is a place in the form in which users name it.
type Target struct {
	kind kind
	text string
	path string // of a folder; the prefix in a bucket, with a slash at the end, or ""
	name string // of the bucket, the section of .pypirc, the repository
}

// String returns the text that ParseTarget read.
func (t Target) String() string { return t.text }

// Folder reports whether the place is a folder on this machine.
func (t Target) Folder() bool { return t.kind == folderKind }

// Index reports whether the place is a package index that takes uploads.
func (t Target) Index() bool { return t.kind == indexKind || t.kind == pypircKind }

// Form is a form of a place, for people.
type Form struct{ Form, Meaning string }

// Forms returns all forms of a place.
func Forms() []Form {
	return []Form{
		{"PATH", "a folder"},
		{"s3://BUCKET[/PREFIX]", "storage that speaks S3"},
		{"https://HOST/PATH", "a package index that takes twine's uploads"},
		{"pypirc:NAME", "such an index, as ~/.pypirc names it"},
		{"oci://REGISTRY/REPOSITORY", "an OCI registry, an artifact for each wheel"},
	}
}

// targetError is the error of a text that names no place; without a hint it lists the forms.
func targetError(text, try, format string, args ...any) error {
	if try == "" {
		forms := each.Map(Forms(), func(f Form) string { return f.Form })
		try = "a place is one of: " + strings.Join(forms, "  ")
	}
	return fault.New(fault.Usage, try, "%s: %w", withoutLogin(text), fmt.Errorf(format, args...))
}

var (
	scheme      = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]+:`) // one letter is a drive of Windows
	bucketName  = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)
	sectionName = regexp.MustCompile(`^[^\s\[\]]+$`)
	ofMachine   = regexp.MustCompile(`^[^\s/:@]+@[^\s/]+:`) // a folder of another machine, as scp writes it
)

// ParseTarget reads one of Forms.
func ParseTarget(text string) (Target, error) {
	t := Target{text: text}
	head := scheme.FindString(text)
	rest := text[len(head):]
	var err error
	switch head {
	case "":
		t.path = text
		if text == "" {
			err = errors.New("it is empty")
		}
		if ofMachine.MatchString(text) {
			return Target{}, targetError(text, "mount the folder, or copy the files with rsync or scp; a folder of this name here is ./"+text,
				"dsbuild publishes into no folder of another machine")
		}
	case "s3:":
		err = t.parseBucket(rest)
	case "http:", "https:":
		t.kind = indexKind
		err = t.parseIndex()
	case "pypirc:":
		t.kind, t.name = pypircKind, rest
		if !sectionName.MatchString(rest) {
			err = errors.New("it must be pypirc: and the name of a section")
		}
	case "github:", "gitlab:":
		return Target{}, targetError(text, "use gh release upload or glab release upload: docs/publish.md", "dsbuild sends nothing to a release of GitHub or GitLab")
	case "oci:":
		err = t.parseRegistry(rest)
	default:
		err = fmt.Errorf("dsbuild knows no place of the form %s", head)
	}
	if err != nil {
		return Target{}, targetError(text, "", "%w", err)
	}
	return t, nil
}

// withoutLogin hides the password in an address.
func withoutLogin(text string) string {
	if at, err := url.Parse(text); err == nil && at.User != nil {
		return httpclient.Redact(at)
	}
	if head, rest, ok := strings.Cut(text, "://"); ok {
		if login, host, ok := strings.Cut(rest, "@"); ok && strings.Contains(login, ":") {
			return head + "://***@" + host
		}
	}
	return text
}

func (t *Target) parseBucket(rest string) error {
	rest, ok := strings.CutPrefix(rest, "//")
	bucket, prefix, _ := strings.Cut(rest, "/")
	switch {
	case !ok || bucket == "":
		return errors.New("it must be s3:// and the name of a bucket")
	case strings.Contains(bucket, "@"):
		return errors.New("it must have no login; dsbuild takes the keys from AWS_ACCESS_KEY_ID or ~/.aws")
	case !bucketName.MatchString(bucket):
		return fmt.Errorf("%q is not the name of a bucket (3 to 63 characters: a-z, 0-9, . and -)", bucket)
	}
	prefix = strings.Trim(prefix, "/")
	for part := range strings.SplitSeq(prefix, "/") {
		if part == "." || part == ".." || part == "" && prefix != "" {
			return errors.New("its prefix has an empty part, or one of dots")
		}
	}
	if prefix != "" {
		prefix += "/"
	}
	t.kind, t.name, t.path = bucketKind, bucket, prefix
	return nil
}

func (t *Target) parseIndex() error {
	at, err := url.Parse(t.text)
	switch {
	case err != nil || at.Host == "":
		return errors.New("it is not the address of an index")
	case at.User != nil:
		return errors.New("an address on the command line must have no login; " +
			"set TWINE_USERNAME and TWINE_PASSWORD, or use ~/.pypirc")
	case at.RawQuery != "" || at.Fragment != "":
		return errors.New("the address of an index has no query and no fragment")
	}
	return nil
}

func (t *Target) parseRegistry(rest string) error {
	rest, ok := strings.CutPrefix(rest, "//")
	host, _, slash := strings.Cut(rest, "/")
	if !ok || !slash || host == "" {
		return errors.New("it must be oci:// with a registry and a repository")
	}
	if strings.Contains(rest, "@") || strings.Contains(rest[len(host):], ":") {
		return errors.New("it must have no login, tag or digest: dsbuild tags the artifact of each wheel with the wheel's name")
	}
	if _, err := name.NewRepository(rest, name.StrictValidation); err != nil {
		return errors.New("it is not the name of a repository")
	}
	t.kind, t.name = registryKind, rest
	return nil
}
