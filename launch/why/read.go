package why

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Limits on what is read.
const (
	maxLine = 64 << 10 // bytes; a longer line is read in pieces
	maxLogs = 100_000
	sample  = 4 << 10 // bytes that show how a file is encoded
)

// log is a log that was read.
type log struct {
	name    string
	scanner *Scanner
	cut     bool // it ends within a line
}

// Read scans logs: files, directories of logs, and "-" for stdin.
func Read(ctx context.Context, paths []string, stdin io.Reader) (*Report, error) {
	var names []string
	for _, path := range paths {
		found, err := logsAt(path)
		if err != nil {
			return nil, fault.WithCode(fmt.Errorf("cannot read log: %w", err), fault.Usage)
		}
		names = append(names, found...)
	}
	r := &Report{Also: []Place{}, Followed: []Finding{}, Notes: []string{}}
	if len(names) == 0 {
		r.note("no logs in %s", strings.Join(paths, ", "))
	}
	var all []log
	for _, name := range names {
		l, err := readLog(ctx, name, stdin)
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, errBinary) && slices.Contains(paths, name):
			err := fmt.Errorf("cannot read log: %s is not a text file", l.name)
			return nil, fault.WithCode(fault.WithHint(err, "of a compressed log: zcat FILE | dsbuild why"), fault.Usage)
		case errors.Is(err, errBinary):
			r.note("%s is not a text file (of a compressed log: zcat FILE | dsbuild why); skipped", l.name)
			continue
		case err != nil && !slices.Contains(paths, name): // one of many in a directory
			r.note("cannot read log: %v; skipped", err)
			continue
		case err != nil:
			return nil, fault.WithCode(fmt.Errorf("cannot read log: %w", err), fault.Usage)
		}
		if l.scanner.line == 0 {
			r.note("%s is empty", l.name)
		}
		all = append(all, l)
	}
	r.Logs = len(all)
	r.decide(all)
	return r, nil
}

// notLogs are files in job directories that hold no output of a rank. dsbuild's communication.log repeats lines of the
// other logs.
var notLogs = regexp.MustCompile(`(?:^|/)(?:communication\.log|\.[^/]*)$|\.(?:json|ya?ml|toml|py|pyc|sh|sbatch|md|csv|tsv|html|png|npz|npy|pt|pth|bin|safetensors|ckpt|parquet|so|whl|gz|zst|tar|zip|pid)$`)

// logsAt returns the logs at a path: path itself, or the logs below it if it is a directory.
func logsAt(path string) (names []string, err error) {
	if path == "-" {
		return []string{path}, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	root := path + string(filepath.Separator) // also of a link to a directory
	err = filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil && name == root:
			return err
		case err != nil: // a directory below it: Read says why it cannot be read
			names = append(names, name)
			return nil
		case len(names) >= maxLogs:
			return fmt.Errorf("%s has more than %d files", path, maxLogs)
		case entry.IsDir() || notLogs.MatchString(filepath.ToSlash(name)):
			return nil
		}
		if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() { // also a link to a file
			names = append(names, name)
		}
		return nil
	})
	slices.SortStableFunc(names, func(a, b string) int { return rankOf(a) - rankOf(b) })
	return names, err
}

var ranked = []*regexp.Regexp{
	regexp.MustCompile(`/attempt_\d+/(\d+)/[^/]*$`),              // torchrun --log-dir
	regexp.MustCompile(`(?i)(?:^|[^a-z])rank[-_.]?(\d+)[^/]*$`),  // rank3.log
	regexp.MustCompile(`/rank[-_.]?(\d+)/[^/]*$`),                // mpirun --output-filename
	regexp.MustCompile(`(?:^|/)std(?:out|err)[-_.](\d+)[^/]*$`),  // stderr_3.txt
	regexp.MustCompile(`(?:^|/)slurm-\d+[-_.](\d+)\.[a-z]+$`),    // slurm-%j_%t.out
	regexp.MustCompile(`(?:^|/)worker-(\d+)\.log$`),              // dsbuild launch --submit
	regexp.MustCompile(`(?:^|/)[^/]*[-_.](?:task|t)(\d+)\.\w+$`), // NAME-t3.out
}

// rankOf returns the rank in a log's name, or -1.
func rankOf(name string) int {
	name = filepath.ToSlash(name)
	if filepath.Base(name) == "main.log" {
		return 0 // of dsbuild launch --submit
	}
	for _, r := range ranked {
		if m := r.FindStringSubmatch(name); m != nil {
			if n, err := strconv.Atoi(m[1]); err == nil {
				return n
			}
		}
	}
	return -1
}

// errBinary is the error of a binary file.
var errBinary = errors.New("not a text file")

func readLog(ctx context.Context, name string, stdin io.Reader) (log, error) {
	l := log{name: name, scanner: NewScanner(rankOf(name))}
	in := stdin
	if name == "-" {
		l.name = "stdin"
	} else {
		f, err := os.Open(name)
		if err != nil {
			return l, err
		}
		defer f.Close()
		defer context.AfterFunc(ctx, func() { f.Close() })() // ends a wait for a pipe
		in = f
	}
	b, err := asText(bufio.NewReaderSize(in, maxLine))
	if err != nil {
		return l, err
	}
	begins := true
	for {
		chunk, err := b.ReadSlice('\n')
		if err != nil && err != io.EOF && err != bufio.ErrBufferFull { //nolint:errorlint // bufio's own values
			return l, err
		}
		if len(chunk) > 0 {
			text := string(bytes.TrimRight(chunk, "\r\n"))
			if begins {
				l.scanner.Add(text)
			} else {
				l.scanner.addPart(text)
			}
			begins = chunk[len(chunk)-1] == '\n'
		}
		if err == io.EOF { //nolint:errorlint // bufio's own value
			l.cut = !begins
			return l, nil
		}
		if ctx.Err() != nil {
			return l, context.Cause(ctx)
		}
	}
}

// asText decodes UTF-16 and rejects binary data.
func asText(b *bufio.Reader) (*bufio.Reader, error) {
	begin, err := b.Peek(sample)
	if err != nil && err != io.EOF { //nolint:errorlint // bufio's own value
		return nil, err
	}
	odd, even, control := 0, 0, 0
	for i, c := range begin {
		switch {
		case c == 0 && i%2 == 0:
			even++
		case c == 0:
			odd++
		case c < ' ' && !strings.ContainsRune("\t\n\r\b\f\x1b\x07", rune(c)):
			control++
		}
	}
	switch half := len(begin) / 2; {
	case bytes.HasPrefix(begin, []byte{0xff, 0xfe}) || odd > half*3/4 && even < half/4 && half > 0:
		return decodeUTF16(b, 0), nil
	case bytes.HasPrefix(begin, []byte{0xfe, 0xff}) || even > half*3/4 && odd < half/4 && half > 0:
		return decodeUTF16(b, 1), nil
	case control > len(begin)/50 || bytes.HasPrefix(begin, []byte("\x7fELF")) || bytes.HasPrefix(begin, []byte{0x1f, 0x8b}):
		return nil, errBinary
	}
	return b, nil
}

// decodeUTF16 decodes UTF-16 whose first byte is the low (0) or the high (1) one.
func decodeUTF16(b *bufio.Reader, high int) *bufio.Reader {
	return bufio.NewReaderSize(&utf16Reader{from: b, high: high}, maxLine)
}

type utf16Reader struct {
	from *bufio.Reader
	high int
	rest []byte
}

func (u *utf16Reader) Read(p []byte) (int, error) {
	for len(u.rest) == 0 {
		var units []uint16
		for len(units) < 2048 && (len(units) == 0 || utf16.IsSurrogate(rune(units[len(units)-1])) || u.from.Buffered() > 1) {
			first, err := u.from.ReadByte()
			second, err2 := u.from.ReadByte()
			if err = errors.Join(err, err2); err != nil {
				if len(units) == 0 {
					return 0, io.EOF
				}
				break
			}
			pair := [2]byte{first, second}
			units = append(units, uint16(pair[u.high])|uint16(pair[1-u.high])<<8)
		}
		u.rest = []byte(string(utf16.Decode(units)))
	}
	n := copy(p, u.rest)
	u.rest = u.rest[n:]
	return n, nil
}

// note adds a note about the logs.
func (r *Report) note(format string, args ...any) {
	const most = 10
	switch len(r.Notes) {
	case most:
		r.Notes = append(r.Notes, "and more")
	case most + 1:
	default:
		r.Notes = append(r.Notes, ui.OneLine(fmt.Sprintf(format, args...)))
	}
}
