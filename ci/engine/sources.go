package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// engineSuite is the Debian release of the engine's own root.
const engineSuite = "bookworm"

// keyring holds the keys of every Debian release still supported.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// mirrors are the addresses this host fetches Debian from.
type mirrors struct{ main, security string }

// aptSource is one "deb" entry of the host.
type aptSource struct{ uri, suite string }

// hostMirrors finds the mirrors in the host's package sources, so that the engine's root and the
// workloads use mirrors that the host can reach.
func hostMirrors(etcApt, codename string) (mirrors, error) {
	files, _ := filepath.Glob(filepath.Join(etcApt, "sources.list.d", "*.sources"))
	lists, _ := filepath.Glob(filepath.Join(etcApt, "sources.list.d", "*.list"))
	files = append(append(files, filepath.Join(etcApt, "sources.list")), lists...)
	var all []aptSource
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		if strings.HasSuffix(f, ".sources") {
			all = append(all, parseDeb822(string(b))...)
		} else {
			all = append(all, parseOneLine(string(b))...)
		}
	}
	var m mirrors
	for _, s := range all {
		switch {
		case !strings.Contains(s.uri, "://"): // cdrom:, mirror+file:
		case s.suite == codename && m.main == "" && !strings.Contains(s.uri, "security"):
			m.main = s.uri
		case s.suite == codename+"-security" && m.security == "":
			m.security = s.uri
		}
	}
	if m.main == "" {
		return m, fmt.Errorf("no package source for %s in %s", codename, etcApt)
	}
	return m, nil
}

// parseDeb822 reads the .sources format; disabled stanzas do not count.
func parseDeb822(text string) (out []aptSource) {
	stanza := map[string]string{}
	end := func() {
		if strings.Contains(stanza["types"]+" ", "deb ") && stanza["enabled"] != "no" {
			for _, u := range strings.Fields(stanza["uris"]) {
				for _, s := range strings.Fields(stanza["suites"]) {
					out = append(out, aptSource{u, s})
				}
			}
		}
		stanza = map[string]string{}
	}
	key := ""
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.TrimSpace(line) == "":
			end()
		case line[0] == ' ' || line[0] == '\t':
			stanza[key] += " " + strings.TrimSpace(line)
		default:
			k, v, _ := strings.Cut(line, ":")
			key = strings.ToLower(k)
			stanza[key] = strings.TrimSpace(v)
		}
	}
	end()
	return out
}

// parseOneLine reads the sources.list format.
func parseOneLine(text string) (out []aptSource) {
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "deb")
		if !ok || rest == "" || (rest[0] != ' ' && rest[0] != '\t') {
			continue
		}
		if rest = strings.TrimSpace(rest); strings.HasPrefix(rest, "[") {
			_, rest, _ = strings.Cut(rest, "]")
		}
		if f := strings.Fields(rest); len(f) >= 2 {
			out = append(out, aptSource{f[0], f[1]})
		}
	}
	return out
}

// sourcesList is the sources.list of a new Debian root. The names of the
// security suites are those since Debian 11.
func (m mirrors) sourcesList(suite string) string {
	line := func(uri, s string) string { return fmt.Sprintf("deb [signed-by=%s] %s %s main\n", keyring, uri, s) }
	text := line(m.main, suite) + line(m.main, suite+"-updates")
	if m.security != "" {
		text += line(m.security, suite+"-security")
	}
	return text
}

// ubuntuList is the sources.list of a new Ubuntu root. The keys are those that
// the root trusts by itself: where they lie differs between releases.
func (m mirrors) ubuntuList(suite string) string {
	line := func(uri, s string) string { return fmt.Sprintf("deb %s %s main universe\n", uri, s) }
	return line(m.main, suite) + line(m.main, suite+"-updates") + line(m.security, suite+"-security")
}
