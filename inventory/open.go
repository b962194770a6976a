package inventory

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/diagnostic"
)

// expressionFile stands for a node expression in messages, in place of a file name.
const expressionFile = "node expression"

// named reads a name that is not a file. It must clearly be a node expression: a single word is
// more likely a misspelt file name.
func named(name string, missing error) (*Inventory, error) {
	if !strings.ContainsAny(name, "[],") || strings.ContainsAny(name, "/ \t\n") {
		return nil, noSuchFile(name, missing)
	}
	rd, err := newReader("-")
	if err != nil {
		return nil, unreadable(name, err)
	}
	rd.File, rd.format, rd.Lines = expressionFile, expressions, []string{name}
	inv := rd.nodeExpressions()
	for _, h := range inv.Hosts {
		if slices.Contains(fileEndings(), filepath.Ext(h.Name)) {
			return nil, noSuchFile(name, missing)
		}
	}
	if err := rd.Err(); err != nil {
		return nil, fmt.Errorf("%s is not a file, so dsbuild read it as a node expression:\n%w", diagnostic.Clip(name), err)
	}
	inv.Path = name
	return inv, nil
}

// fileEndings returns extensions of file names. No node name ends with one.
func fileEndings() []string {
	return []string{".yaml", ".yml", ".json", ".ini", ".cfg", ".conf", ".txt", ".toml"}
}

// noSuchFile returns the error for a missing file, with the nearest existing name as a hint.
func noSuchFile(name string, err error) error {
	failed := unreadable(name, err)
	advice := "give a file, - for standard input, or a node expression: gpu[01-16], or gpu1,gpu2"
	if strings.Trim(name[max(len(name)-1, 0):], "0123456789") == "" && name != "" && !strings.ContainsAny(name, "/.") {
		advice = "give a file, - for standard input, or a node expression; write a single node as " + oneNode(name)
	}
	if entries, err := os.ReadDir(filepath.Dir(name)); err == nil {
		var names []string
		for _, e := range entries {
			if !e.IsDir() {
				names = append(names, e.Name())
			}
		}
		if near := diagnostic.Nearest(filepath.Base(name), names); near != "" && diagnostic.Distance(filepath.Base(name), near) <= 2*diagnostic.Letter {
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

// secret matches a variable with its value if its name shows that the value is secret.
var secret = regexp.MustCompile(`(?i)(\w*(?:pass|secret|token|credential|api_?key|private_key)\w*["']?\s*[=:]\s*)("[^"]*"?|'[^']*'?|\S+)`)

// withoutSecrets returns the lines for excerpts, with stars in place of secrets. The columns stay.
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
