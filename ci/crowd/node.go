//go:build linux

package crowd

import (
	"bufio"
	"compress/zlib"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/dsbuild/dsbuild/internal/remote/sshtest"
)

// node is one server with its simulated state.
type node struct {
	name   string
	server *sshtest.Server
	wheel  inside

	mu        sync.Mutex
	installed bool
}

func (n *node) python() string { return filepath.Join(n.venv(), "bin", "python") }
func (n *node) venv() string   { return "/opt/" + n.name + "/venv" }
func (n *node) inbox() string  { return filepath.Join(n.server.Home, "inbox") }

func (n *node) runs() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.installed
}

var (
	sizeArgument = regexp.MustCompile(`(\d+)\+(\d+)$`)
	markLine     = regexp.MustCompile(`(?m)^MARK = (".*")$`)
	requestLine  = regexp.MustCompile(`(?m)^REQUEST = (".*")$`)
)

// conversation is a running command: one of dsbuild's programs, which arrived on its standard
// input.
type conversation struct {
	node    *node
	request json.RawMessage
	in      io.Reader // the input after the program
	out     io.Writer
	mark    string
}

// exec answers a command like the program that dsbuild sent with it.
func (n *node) exec(command string, stdin io.Reader, stdout, stderr io.Writer) int {
	c := conversation{node: n, in: stdin, out: stdout}
	source, err := c.read(command)
	switch {
	case err != nil:
	case strings.Contains(source, "\nANSWERED = "):
		if err = c.say(n.facts()); err == nil && strings.Contains(source, "def look_at_files(") {
			err = c.look()
		}
	case strings.Contains(source, "class Environment"):
		err = c.agent()
	default:
		err = fmt.Errorf("what is asked by %s?", command)
	}
	if err != nil {
		fmt.Fprintf(stderr, "crowd: %v\n", err)
		return 1
	}
	return 0
}

// read reads the program and its request. The first part is plain text and holds the mark and the
// request; the rest is compressed.
func (c *conversation) read(command string) (source string, err error) {
	sizes := sizeArgument.FindStringSubmatch(strings.TrimRight(command, "'"))
	if sizes == nil {
		return "", fmt.Errorf("no program comes with %s", command)
	}
	var told, packed int64
	if _, err := fmt.Sscan(sizes[1]+" "+sizes[2], &told, &packed); err != nil {
		return "", err
	}
	var program strings.Builder
	if _, err := io.CopyN(&program, c.in, told); err != nil {
		return "", err
	}
	rest := io.LimitReader(c.in, packed)
	z, err := zlib.NewReader(rest)
	if err != nil {
		return "", err
	}
	if _, err := io.Copy(&program, z); err != nil {
		return "", err
	}
	if _, err := io.Copy(io.Discard, rest); err != nil {
		return "", err
	}
	source = program.String()
	mark := markLine.FindStringSubmatch(source)
	if mark == nil {
		return "", fmt.Errorf("a program without a mark: %.200s", source)
	}
	if c.mark, err = strconv.Unquote(mark[1]); err != nil {
		return "", err
	}
	if request := requestLine.FindStringSubmatch(source); request != nil {
		text, err := strconv.Unquote(request[1])
		if err != nil {
			return "", err
		}
		c.request = json.RawMessage(text)
	}
	return source, nil
}

// say writes a message to dsbuild.
func (c *conversation) say(message any) error {
	text, err := json.Marshal(message)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.out, "\n%s%s\n", c.mark, text)
	return err
}

// object is a JSON object.
type object = map[string]any

// probed is the answer of a real node with torch and without DeepSpeed to the probe.
//
//go:embed probed.json
var probed string

// facts returns the probe's answer.
func (n *node) facts() object {
	text := strings.NewReplacer("{venv}", n.venv(), "{site}", "local:"+n.name).Replace(probed)
	var python object
	if err := json.Unmarshal([]byte(text), &python); err != nil {
		panic(err) // probed.json is part of this package
	}
	if n.runs() {
		python["deepspeed"] = n.found()
		python["build_text"] = n.wheel.build
	}
	return object{"python": python}
}

// found describes the installed DeepSpeed.
func (n *node) found() object {
	return object{
		"version": n.wheel.version, "sha256": n.wheel.sha256, "path": filepath.Join(n.venv(), "lib/python3.11/site-packages/deepspeed"),
		"record": n.wheel.record, "intact": true,
	}
}

// order is an order to the agent.
type order struct {
	Do     string `json:"do"`
	Number int    `json:"number"`
	File   string `json:"file"`
	Size   int64  `json:"size"`
}

// agent answers like the agent, the program that changes an environment.
func (c *conversation) agent() error {
	begun := object{"inbox": c.node.inbox(), "arrived": []string{}, "now": nil, "previous": nil, "repaired": false, "run": ""}
	if c.node.runs() {
		begun["now"] = c.node.found()
	}
	if err := os.MkdirAll(c.node.inbox(), 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(c.node.inbox())
	if err := c.say(object{"to": 0, "ok": begun}); err != nil {
		return err
	}
	lines := bufio.NewScanner(c.in)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			return err
		}
		switch o.Do {
		case "ping":
			continue
		case "end":
			return nil
		}
		answer, err := c.node.obey(o)
		if err != nil {
			return err
		}
		if err := c.say(object{"to": o.Number, "ok": answer}); err != nil {
			return err
		}
	}
	return lines.Err()
}

// obey executes an order, as far as its effects are visible to dsbuild.
func (n *node) obey(o order) (object, error) {
	switch o.Do {
	case "digest":
		return digest(filepath.Join(n.inbox(), filepath.Base(o.File)), o.Size)
	case "users":
		return object{"in_use": []string{}, "in_use_more": 0, "in_use_unseen": 0}, nil
	case "install":
		return object{"version": n.wheel.version, "record": n.wheel.record}, nil
	case "verify":
		return object{"version": n.wheel.version, "torch": "", "cuda": ""}, nil
	case "record":
		n.mu.Lock()
		defer n.mu.Unlock()
		n.installed = true
		return object{}, nil
	case "undo":
		return object{"before": nil, "recorded": n.runs(), "finished": true}, nil
	}
	return nil, fmt.Errorf("unknown order %s", o.Do)
}

// digest returns the sha256 of the first size bytes of a file.
func digest(file string, size int64) (object, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.CopyN(h, f, size); err != nil {
		return nil, err
	}
	return object{"sha256": hex.EncodeToString(h.Sum(nil))}, nil
}

// look answers like the probe's errand that inspects an installed DeepSpeed.
func (c *conversation) look() error {
	n := c.node
	if !n.runs() {
		return c.say(object{"done": true})
	}
	var asked struct {
		Known []string `json:"known"`
	}
	if err := json.Unmarshal(c.request, &asked); err != nil {
		return err
	}
	files := n.wheel.files
	for _, known := range asked.Known {
		if known == n.wheel.digest {
			files = nil
		}
	}
	noted := object{"wheel": n.wheel.name, "sha256": n.wheel.sha256, "version": n.wheel.version, "same": true}
	err := c.say(object{"looked": object{
		"version": n.wheel.version, "noted": noted, "manifest": n.wheel.manifest,
		"digest": n.wheel.digest, "files": files, "others": object{}, "bare": false, "conda": false, "litter": object{"count": 0, "first": []string{}},
	}})
	if err != nil {
		return err
	}
	return c.say(object{"done": true})
}
