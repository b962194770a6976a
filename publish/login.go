package publish

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"gopkg.in/ini.v1"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// section is an index in ~/.pypirc.
type section struct {
	address string
	login   login
}

// The addresses that twine knows without ~/.pypirc.
func knownIndexes() map[string]string {
	return map[string]string{"pypi": "https://upload.pypi.org/legacy/", "testpypi": "https://test.pypi.org/legacy/"}
}

// openPypirc opens the index that ~/.pypirc names.
func (r *run) openPypirc(name string) (place, error) {
	s, err := r.readPypirc(name)
	if err != nil {
		return nil, err
	}
	t, err := ParseTarget(s.address)
	if err != nil || t.kind != indexKind {
		why := fmt.Sprintf("~/.pypirc gives it the repository %q, which is not the address of an index", withoutLogin(s.address))
		return nil, &TargetError{r.To.text, why, "correct repository in ~/.pypirc: https://HOST/PATH"}
	}
	return r.openIndex(s.address, s.login)
}

// readPypirc reads a section of ~/.pypirc.
func (r *run) readPypirc(name string) (section, error) {
	file := filepath.Join(r.Home, ".pypirc")
	s := section{address: knownIndexes()[name]}
	conf, err := ini.LoadSources(ini.LoadOptions{IgnoreInlineComment: true, SkipUnrecognizableLines: true}, file)
	wrong := func(try, why string, args ...any) (section, error) {
		return s, &TargetError{r.To.text, "~/.pypirc " + fmt.Sprintf(why, args...), try + ", or give https://HOST/PATH"}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) && s.address != "":
		return s, nil
	case errors.Is(err, fs.ErrNotExist):
		return wrong("create it with a section ["+name+"]", "is not there")
	case err != nil:
		return wrong("correct it", "cannot be read: %v", withoutValues(err))
	case !conf.HasSection(name) && s.address == "":
		return wrong("add one", "has no section [%s]", name)
	}
	said := conf.Section(name)
	s.address = cmp.Or(said.Key("repository").String(), s.address)
	s.login = r.secrets.addLogin(login{said.Key("username").String(), said.Key("password").String()})
	if s.address == "" {
		return wrong("add repository = https://HOST/PATH", "has no repository in the section [%s]", name)
	}
	return s, nil
}

// withoutValues hides the lines that a parser quotes: they may hold a password.
func withoutValues(err error) error {
	if path := new(fs.PathError); errors.As(err, &path) {
		return path.Err
	}
	return errors.New("it is not a file of sections with NAME = VALUE")
}

// loginFor returns the login for an index: that of the environment, of ~/.pypirc, of ~/.netrc.
func (r *run) loginFor(address string, said login) (login, error) {
	said.user = cmp.Or(r.Getenv("TWINE_USERNAME"), said.user)
	said.password = cmp.Or(r.Getenv("TWINE_PASSWORD"), said.password)
	if said.password == "" {
		at, err := url.Parse(address)
		if err != nil {
			return login{}, err
		}
		machine, err := r.readNetrc(at.Hostname())
		if err != nil {
			return login{}, err
		}
		if said.user == "" || said.user == machine.user {
			said = machine
		}
	}
	if said.password != "" && said.user == "" {
		said.user = "__token__" // the user of a token
	}
	return r.secrets.addLogin(said), nil
}

// readNetrc returns the login of a host in the file NETRC names, or ~/.netrc.
func (r *run) readNetrc(host string) (login, error) {
	file := cmp.Or(r.Getenv("NETRC"), filepath.Join(r.Home, ".netrc"))
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return login{}, nil
	}
	if err != nil {
		return login{}, fault.WithHint(err, "make it readable, or set TWINE_USERNAME and TWINE_PASSWORD")
	}
	return parseNetrc(string(text), host), nil
}

// parseNetrc finds the login of a host, or that of the entry "default".
func parseNetrc(text, host string) login {
	var found login
	words := strings.Fields(withoutMacros(text))
	ours := false
	for i := 0; i < len(words); i++ {
		next := ""
		if i+1 < len(words) {
			next = words[i+1]
		}
		switch words[i] {
		case "machine", "default":
			if found != (login{}) {
				return found
			}
			ours = words[i] == "default" || next == host
			if words[i] == "machine" {
				i++
			}
		case "login", "password", "account":
			if ours && words[i] == "login" {
				found.user = next
			}
			if ours && words[i] == "password" {
				found.password = next
			}
			i++
		}
	}
	return found
}

// withoutMacros removes comments, and macros, which end at an empty line.
func withoutMacros(text string) string {
	var kept strings.Builder
	inMacro := false
	for line := range strings.Lines(text) {
		word := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(word, "macdef"):
			inMacro = true
		case word == "":
			inMacro = false
		case !inMacro && !strings.HasPrefix(word, "#"):
			kept.WriteString(line)
		}
	}
	return kept.String()
}
