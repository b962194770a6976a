package x86

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// tool returns the path of a program the comparison needs: GNU binutils and gcc
// for x86-64. Without it the test is skipped, and fails in CI.
func tool(t testing.TB, name string) string {
	t.Helper()
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Skip("compares with the tools of x86-64 Linux")
	}
	path, err := exec.LookPath(name)
	if err == nil {
		return path
	}
	if os.Getenv("CI") == "true" {
		t.Fatal(err)
	}
	t.Skip(err)
	return ""
}

// run runs a program and returns what it prints.
func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(tool(t, name), args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, stderr.Bytes())
	}
	return string(out)
}

// line is one instruction as objdump prints it.
type line struct {
	address uint64
	code    []byte
	text    string
}

// bad says that objdump found no instruction there.
func (l line) bad() bool {
	return strings.HasPrefix(l.text, ".byte") || strings.Contains(l.text, "bad") && badText.MatchString(l.text)
}

var badText = regexp.MustCompile(`\(bad\)|\{(\w+-)?bad\}`)

// objdump disassembles and calls use for each instruction as a CPU sees it. Near
// branches with a 66 prefix are read as Intel's CPUs do; objdump's own default is
// AMD's reading.
func objdump(t testing.TB, use func(section string, l line), args ...string) {
	t.Helper()
	cmd := exec.Command(tool(t, "objdump"), append([]string{"-w", "-z", "-M", "intel64", "--insn-width=24"}, args...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	parseObjdump(t, out, use)
	if err := cmd.Wait(); err != nil {
		t.Fatalf("objdump %q: %v: %s", args, err, stderr.Bytes())
	}
}

// parseObjdump reads lines such as "  4f:\tc5 f8 77 \tvzeroupper".
func parseObjdump(t testing.TB, r io.Reader, use func(section string, l line)) {
	t.Helper()
	section := ""
	var cpu asCPU
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if name, ok := strings.CutPrefix(lines.Text(), "Disassembly of section "); ok {
			section = strings.TrimSuffix(name, ":")
			cpu = asCPU{}
			continue
		}
		at, rest, isLine := strings.Cut(lines.Text(), ":\t")
		address, err := strconv.ParseUint(strings.TrimSpace(at), 16, 64)
		if !isLine || err != nil {
			continue
		}
		digits, text, _ := strings.Cut(rest, "\t")
		code, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
		if err != nil || len(code) == 0 {
			t.Fatalf("objdump: %q", lines.Text())
		}
		for _, l := range cpu.add(line{address, code, text}) {
			use(section, l)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
}

// asCPU turns what objdump prints into the instructions that a CPU runs.
type asCPU struct {
	prefixes []byte // of an instruction to come
}

// isPrefixName says whether objdump calls a prefix so.
func isPrefixName(word string) bool {
	switch word {
	case "data16", "addr32", "lock", "repz", "repnz", "rep", "xacquire", "xrelease", "bnd", "notrack",
		"cs", "ds", "es", "fs", "gs", "ss", "{vex}", "{vex3}", "{evex}":
		return true
	}
	return strings.HasPrefix(word, "rex")
}

// withoutPrefixes drops the names of prefixes in front of the mnemonic.
func withoutPrefixes(text string) string {
	for {
		text = strings.TrimLeft(text, " ")
		word, rest, _ := strings.Cut(text, " ")
		if !isPrefixName(word) {
			return text
		}
		text = rest
	}
}

// add takes a line and returns the instructions that are complete with it.
// objdump prints a REX that another prefix follows on a line of its own, but to
// a CPU it belongs to what follows; and fwait, an instruction by itself, together
// with the x87 instruction behind it.
func (a *asCPU) add(l line) []line {
	l.address -= uint64(len(a.prefixes))
	l.code = append(a.prefixes, l.code...)
	a.prefixes = nil
	if withoutPrefixes(l.text) == "" {
		a.prefixes = l.code
		return nil
	}
	var out []line
	for rest := behindPrefixes(l.code); len(rest) > 1 && rest[0] == fwait; rest = behindPrefixes(l.code) {
		n := len(l.code) - len(rest) + 1
		out = append(out, line{l.address, l.code[:n], "fwait"})
		l.address, l.code = l.address+uint64(n), l.code[n:]
	}
	if len(out) > 0 && strings.HasSuffix(l.text, "fwait") { // nothing but prefixes is behind it
		a.prefixes = l.code
		return out
	}
	return append(out, l)
}

const fwait = 0x9b

// behindPrefixes returns code from its opcode on, REX being a prefix too.
func behindPrefixes(code []byte) []byte {
	prefixes := []byte{0x26, 0x2e, 0x36, 0x3e, 0x64, 0x65, 0x66, 0x67, 0xf0, 0xf2, 0xf3}
	for len(code) > 1 && (code[0]>>4 == 4 || bytes.IndexByte(prefixes, code[0]) >= 0) {
		code = code[1:]
	}
	return code
}
