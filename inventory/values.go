package inventory

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/lineerr"
	"github.com/dsbuild/dsbuild/internal/yamldoc"
)

// text reads a text and checks it. An empty text is valid: it cancels a default.
func (r *reader) text(n yamldoc.Node, check func(string) error) optional[string] {
	value, ok := r.String(n)
	if !ok {
		return optional[string]{}
	}
	if strings.ContainsRune(value, 0) {
		r.Add(r.Place(n), "", "must not contain a NUL byte")
		return optional[string]{}
	}
	if check != nil && value != "" {
		if err := check(value); err != nil {
			r.Add(r.Place(n), "", "%v", err)
			return optional[string]{}
		}
	}
	return some(value)
}

// word reads a text that must not be empty.
func (r *reader) word(n yamldoc.Node, check func(string) error) optional[string] {
	value := r.text(n, check)
	if value.set && value.value == "" {
		r.Add(r.Place(n), "", "must not be empty")
		return optional[string]{}
	}
	return value
}

// sudo reads the user that runs commands: true is root, false is the login user, without sudo.
func (r *reader) sudo(n yamldoc.Node) optional[string] {
	if yes, ok := yamldoc.Bool(n); ok {
		if yes {
			return some("root")
		}
		return some("")
	}
	return r.word(n, func(s string) error {
		if slices.Contains([]string{"true", "false", "yes", "no", "on", "off"}, strings.ToLower(s)) {
			return fmt.Errorf("%q is a string: want true or false without quotes, or a user name", s)
		}
		return checkUser(s)
	})
}

// path reads a local file name and makes it absolute.
func (r *reader) path(n yamldoc.Node) optional[string] {
	value := r.word(n, nil)
	if !value.set {
		return value
	}
	path, err := r.expandHome(value.value)
	if err != nil {
		r.Add(r.Place(n), "write the full path", "%v", err)
		return optional[string]{}
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(r.dir, path)
	}
	return some(filepath.Clean(path))
}

// expandHome replaces a leading ~ by the home directory.
func (r *reader) expandHome(path string) (string, error) {
	switch {
	case path != "~" && !strings.HasPrefix(path, "~/"):
		if strings.HasPrefix(path, "~") {
			return "", fmt.Errorf("cannot expand %q: only ~/ is supported", lineerr.Clip(path))
		}
		return path, nil
	case r.home == "":
		return "", errors.New("cannot expand ~: unknown home directory")
	}
	return filepath.Join(r.home, path[1:]), nil
}

// number reads a whole number from 1 to high.
func (r *reader) number(n yamldoc.Node, high int) optional[int] {
	value, ok := r.Number(n, 1, high)
	return optional[int]{value, ok}
}

// list reads a list of texts, the value of a key.
func (r *reader) list(n yamldoc.Node, key string, check func(string) error) optional[[]string] {
	values := []string{}
	for _, item := range r.Entries(n, key) {
		if value := r.word(item, check); value.set {
			values = append(values, value.value)
		}
	}
	return some(values)
}

// variableName matches the names that a shell accepts for variables.
var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// variables reads a mapping of environment variables. Numbers and booleans keep their spelling.
func (r *reader) variables(n yamldoc.Node) map[string]string {
	vars := make(map[string]string)
	for _, p := range r.Pairs(n, "env", nil) {
		if !variableName.MatchString(p.Key) {
			r.Add(p.At, "", "invalid environment variable name %q", lineerr.Clip(p.Key))
			continue
		}
		if text, ok := yamldoc.Spelling(p.Node); ok {
			vars[p.Key] = text
		} else if value := r.text(p.Node, nil); value.set {
			vars[p.Key] = value.value
		}
	}
	return vars
}
