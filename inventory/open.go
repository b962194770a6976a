package inventory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/mistake"
)

// expressionFile is what messages call a node expression that is no file.
const expressionFile = "node expression"

// named reads a name that is no file: a node expression if it can only be one.
// A single word is taken for the name of a file with a slip in it.
func named(name string, missing error) (*Inventory, error) {
	if !strings.ContainsAny(name, "[],") || strings.ContainsAny(name, "/ \t\n") {
		return nil, noSuchFile(name, missing)
	}
	rd, err := newReader("-")
	if err != nil {
		return nil, unreadable(name, err)
	}
	rd.file, rd.format, rd.Lines = expressionFile, expressions, []string{name}
	inv := rd.nodeExpressions()
	for _, h := range inv.Hosts {
		if slices.Contains(fileEndings(), filepath.Ext(h.Name)) {
			return nil, noSuchFile(name, missing)
		}
	}
	if err := rd.Err(); err != nil {
		return nil, fmt.Errorf("%s is no file, and was read as a node expression:\n%w", mistake.Clip(name), err)
	}
	inv.Path = name
	return inv, nil
}

// fileEndings are what names of files end with, and names of nodes do not.
func fileEndings() []string {
	return []string{".yaml", ".yml", ".json", ".ini", ".cfg", ".conf", ".txt", ".toml"}
}

// noSuchFile says so, with the nearest name that there is.
func noSuchFile(name string, err error) error {
	failed := unreadable(name, err)
	advice := "INVENTORY is a file, - for standard input, or a node expression: gpu[01-16], or gpu1,gpu2"
	if strings.Trim(name[max(len(name)-1, 0):], "0123456789") == "" && name != "" && !strings.ContainsAny(name, "/.") {
		advice = "INVENTORY is a file, - for standard input, or a node expression; a single node is " + oneNode(name)
	}
	if entries, err := os.ReadDir(filepath.Dir(name)); err == nil {
		var names []string
		for _, e := range entries {
			if !e.IsDir() {
				names = append(names, e.Name())
			}
		}
		if near := mistake.Nearest(filepath.Base(name), names); near != "" {
			advice = "did you mean " + filepath.Join(filepath.Dir(name), near) + "?"
		}
	}
	failed.Problems[0].Hint = advice
	return failed
}

// oneNode writes the name of a node, which ends in a number, as an expression.
func oneNode(name string) string {
	stem := strings.TrimRight(name, "0123456789")
	return stem + "[" + name[len(stem):] + "]"
}

// isProgram reports whether a file begins as scripts do.
func isProgram(file io.ReadSeeker) (bool, error) {
	head := make([]byte, 2)
	n, err := io.ReadFull(file, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return false, err
	}
	_, err = file.Seek(0, io.SeekStart)
	return bytes.Equal(head[:n], []byte("#!")), err
}

// dynamic reads an inventory that is a program, which dsbuild does not run.
func (o Options) dynamic(ctx context.Context, path string) (*Inventory, error) {
	if o.Ansible != nil {
		return o.listed(ctx, path, nil)
	}
	failed := unreadable(path, errors.New("it is a program, a dynamic inventory, and only ansible-inventory runs it"))
	failed.Problems[0].Hint = "install ansible-core, or: ./" + filepath.Base(path) + " --list | dsbuild ... -"
	return nil, failed
}

// listed reads an inventory as ansible-inventory tells it. Where that fails, own
// looks for what is wrong with the file, for it knows lines and columns.
func (o Options) listed(ctx context.Context, path string, own func() error) (*Inventory, error) {
	text, err := o.Ansible(ctx, path)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		failed := unreadable(path, fmt.Errorf("ansible-inventory: %w", err))
		if own != nil {
			failed.Problems[0].Hint = "from standard input (-) dsbuild reads it itself, and asks no other program"
		}
		var more *Error
		if own != nil && errors.As(own(), &more) {
			failed.Problems = append(failed.Problems, more.Problems...)
		}
		return nil, failed
	}
	rd, err := newReader(path)
	if err != nil {
		return nil, unreadable(path, err)
	}
	rd.format = ansibleList
	inv := rd.read(document{text: text})
	if err := rd.err(); err != nil {
		return nil, err
	}
	inv.Path = path
	return inv, nil
}

// secret is a variable whose value is not to be shown. Its name says so.
var secret = regexp.MustCompile(`(?i)(\w*(?:pass|secret|token|credential|api_?key|private_key)\w*["']?\s*[=:]\s*)("[^"]*"?|'[^']*'?|\S+)`)

// withoutSecrets are lines for excerpts, with stars in place of what only the
// owner should see. The columns stay.
func withoutSecrets(lines []string) []string {
	shown := slices.Clone(lines)
	for i, line := range shown {
		for _, m := range slices.Backward(secret.FindAllStringSubmatchIndex(line, -1)) {
			if strings.Contains(strings.ToLower(line[m[2]:m[3]]), "_file") {
				continue
			}
			value := line[m[4]:m[5]]
			line = line[:m[4]] + strings.Repeat("*", len([]rune(value))) + line[m[5]:]
		}
		shown[i] = line
	}
	return shown
}
