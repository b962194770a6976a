// Package rules holds the program to its plan: which package may import what.
// The table is in docs/design.md; this is the one that is enforced.
package rules

import (
	"slices"
	"strings"
)

// Module is the path of the module that the rules are about.
const Module = "github.com/dsbuild/dsbuild"

// Rule says what the packages of a folder may not import. Deny and Allow are
// prefixes of import paths; a "$" at the end means just this path. Where both
// match, the longer one decides. Tests are free.
type Rule struct {
	// Folder is relative to the module; its subfolders are meant too.
	Folder string
	Deny   []string
	Allow  []string
	Reason string
}

// Packages that some rooms must not import.
const (
	ssh    = "golang.org/x/crypto/ssh"
	sftp   = "github.com/pkg/sftp"
	cobra  = "github.com/spf13/cobra"
	yaml   = "github.com/goccy/go-yaml"
	dagger = "dagger.io/dagger"
)

// ours are packages of this module.
func ours(folders ...string) []string {
	paths := make([]string, len(folders))
	for i, folder := range folders {
		paths[i] = Module + "/" + folder
	}
	return paths
}

// Imports are the rules, one for each room of the house.
func Imports() []Rule {
	return slices.Concat(pureRooms(), actingRooms(), innerRooms())
}

// pureRooms compute, and reach nothing.
func pureRooms() []Rule {
	return []Rule{
		{
			Folder: "wheel",
			Deny:   []string{Module},
			Allow:  ours("wheel"),
			Reason: "what a wheel is depends on nothing else of ours",
		},
		{
			Folder: "compat",
			Deny:   ours("pipeline", "deploy", "inventory", "cmd", "launch", "ship", "nightly"),
			Reason: "the tables are pure: they neither build nor reach anything",
		},
		{
			Folder: "dockerfiles",
			Deny:   []string{Module},
			Allow:  ours("dockerfiles"),
			Reason: "images and pins are data",
		},
		{
			Folder: "inventory",
			Deny: append(ours("wheel", "deploy", "cmd", "launch", "pipeline", "ship", "nightly", "internal/remote"),
				"net$", "net/http", "net/rpc", "golang.org/x/net", "os/exec", ssh, sftp),
			Reason: "reading the nodes contacts none of them, and runs nothing",
		},
		{
			Folder: "launch/lint",
			Deny:   []string{Module, cobra, "os/exec", "net$", "net/http", ssh},
			Allow:  ours("launch/lint", "inventory", "internal/diagnostic"),
			Reason: "a script is judged by its text alone: nothing is run or reached",
		},
	}
}

// actingRooms returns the rules of the packages that do the work of the commands.
func actingRooms() []Rule {
	return []Rule{
		{
			Folder: "cmd/dsbuild",
			Deny:   []string{ssh, sftp, yaml},
			Reason: "cmd knows commands and exit codes, not how nodes are reached or files are written",
		},
		{
			Folder: "node",
			Deny:   ours("pipeline", "deploy", "cmd", "launch", "ship", "nightly"),
			Reason: "facts about a node are gathered the same for whoever asks",
		},
		{
			Folder: "agent",
			Deny:   ours("wheel", "compat", "inventory", "deploy", "pipeline", "launch", "cmd", "ship", "nightly"),
			Reason: "the session with a program on a node is the same whatever the program does",
		},
		{
			Folder: "pipeline",
			Deny:   append(ours("inventory", "deploy", "launch", "cmd", "ship", "nightly"), cobra),
			Reason: "building knows no nodes and no command line",
		},
		{
			Folder: "fleet",
			Deny:   append(ours("wheel", "compat", "deploy", "verify", "pipeline", "cmd", "launch", "ship", "nightly"), dagger, cobra, yaml),
			Reason: "many nodes are taken through steps, whatever the steps are for",
		},
		{
			Folder: "verify",
			Deny:   append(ours("deploy", "pipeline", "cmd", "launch", "ship", "nightly"), dagger, cobra, yaml),
			Allow:  ours("deploy/wheels"),
			Reason: "verify changes no node, so it knows nothing that does",
		},
		{
			Folder: "deploy",
			Deny:   append(ours("pipeline", "cmd", "launch", "ship", "nightly"), dagger, cobra, yaml),
			Reason: "deploying takes a finished wheel, from wherever it came",
		},
		{
			Folder: "ship",
			Deny:   append(ours("cmd", "nightly", "launch"), cobra, ssh, dagger),
			Reason: "ship combines pipeline and deploy, and knows nothing below them",
		},
		{
			Folder: "nightly",
			Deny:   append(ours("cmd", "ship", "launch"), cobra, ssh, dagger),
			Reason: "nightly combines pipeline, index and deploy, and knows nothing below them",
		},
		{
			Folder: "launch",
			Deny:   ours("pipeline", "deploy", "cmd", "ship", "nightly"),
			Reason: "a job runs on nodes that are ready: building and deploying are over",
		},
		{
			Folder: "index",
			Deny:   []string{Module},
			Allow:  ours("index", "wheel", "internal/htmlpage", "internal/atomicfile"),
			Reason: "the index is made of wheels alone",
		},
		{
			Folder: "ci",
			Deny:   ours("cmd"),
			Reason: "what tests need around the program drives it from outside",
		},
	}
}

// innerRooms serve the others.
func innerRooms() []Rule { //nolint:revive // a table, however long
	return []Rule{
		{
			Folder: "internal/remote",
			Deny:   ours("inventory", "wheel", "deploy", "fleet", "verify", "pipeline", "compat", "node", "launch", "cmd", "ship", "nightly"),
			Reason: "a connection runs commands and puts files, whatever they are for",
		},
		{
			Folder: "internal/slurm",
			Deny:   ours("wheel", "deploy", "fleet", "verify", "pipeline", "compat", "node", "launch", "cmd", "ship", "nightly"),
			Reason: "Slurm runs commands and brings files, whatever they are for",
		},
		{
			Folder: "internal/hosts",
			Deny:   ours("wheel", "deploy", "fleet", "verify", "pipeline", "compat", "node", "launch", "cmd", "ship", "nightly"),
			Reason: "a host is reached the same for whatever is done there",
		},
		{
			Folder: "internal/fanout",
			Deny:   []string{Module},
			Allow:  ours("internal/fanout"),
			Reason: "running many things at once has nothing to do with what they are",
		},
		{
			Folder: "internal/ui",
			Deny:   []string{Module},
			Allow:  ours("internal/ui", "internal/hint"),
			Reason: "talking to a person is the same for every domain",
		},
		{
			Folder: "internal/pyindex",
			Deny:   []string{Module},
			Allow:  ours("internal/pyindex"),
			Reason: "what an index lists is the same whatever is looked for",
		},
		{
			Folder: "internal/diagnostic",
			Deny:   []string{Module},
			Allow:  ours("internal/diagnostic"),
			Reason: "a place in a file is one whatever the file says",
		},
		{
			Folder: "internal/scratch",
			Deny:   []string{Module},
			Allow:  ours("internal/scratch"),
			Reason: "a temporary directory is one whatever lies in it",
		},
		{
			Folder: "internal/htmlpage",
			Deny:   []string{Module},
			Allow:  ours("internal/htmlpage"),
			Reason: "what a browser may do with a page is the same whatever it shows",
		},
		{
			Folder: "internal/filetime",
			Deny:   []string{Module},
			Allow:  ours("internal/filetime"),
			Reason: "a time of change does not depend on the content",
		},
		{
			Folder: "internal/atomicfile",
			Deny:   []string{Module},
			Allow:  ours("internal/atomicfile"),
			Reason: "writing a file does not depend on its content",
		},
		{
			Folder: "internal/yamldoc",
			Deny:   []string{Module},
			Allow:  ours("internal/yamldoc", "internal/diagnostic"),
			Reason: "how a file is read has nothing to do with what it says",
		},
		{
			Folder: "internal/junit",
			Deny:   []string{Module},
			Allow:  ours("internal/junit"),
			Reason: "a test that failed is one whatever was tested",
		},
		{
			Folder: "internal/cause",
			Deny:   []string{Module},
			Allow:  ours("internal/cause"),
			Reason: "every package may use it",
		},
		{
			Folder: "internal/hint",
			Deny:   []string{Module},
			Allow:  ours("internal/hint"),
			Reason: "every package may use it",
		},
		{
			Folder: "internal/rules",
			Deny:   []string{Module},
			Allow:  ours("internal/rules"),
			Reason: "only its test reads the program",
		},
	}
}

// Everywhere are the rules for every folder but those that Except names.
func Everywhere() []Except {
	return []Except{
		{
			Folders: []string{"ci"},
			Deny:    Module + "/ci",
			Reason:  "ci is for tests: the program must not need it",
		},
		{
			Folders: []string{"pipeline/daggerbuilder", "ci"},
			Deny:    dagger,
			Reason:  "no dagger types across package borders",
		},
		{
			Folders: []string{"internal/remote", "ci"},
			Deny:    ssh,
			Reason:  "no ssh types across package borders",
		},
	}
}

// Except is something that only some folders may import.
type Except struct {
	Folders []string
	Deny    string
	Reason  string
}

// Violation returns why a package of ours, given by its folder, may not import
// path; "" if it may. Of two rules the one for the deeper folder is asked.
func Violation(folder, path string) string {
	for _, e := range Everywhere() {
		if matches(e.Deny, path) && !anyContains(e.Folders, folder) {
			return e.Reason
		}
	}
	rule, ok := ruleFor(folder)
	if ok && longest(rule.Deny, path) > longest(rule.Allow, path) {
		return rule.Reason
	}
	return ""
}

func ruleFor(folder string) (Rule, bool) {
	var found Rule
	for _, r := range Imports() {
		if contains(r.Folder, folder) && len(r.Folder) > len(found.Folder) {
			found = r
		}
	}
	return found, found.Folder != ""
}

// contains reports whether folder is outer or below it.
func contains(outer, folder string) bool {
	return folder == outer || strings.HasPrefix(folder, outer+"/")
}

func anyContains(outer []string, folder string) bool {
	for _, o := range outer {
		if contains(o, folder) {
			return true
		}
	}
	return false
}

// matches is depguard's rule: a prefix, or with "$" the whole path.
func matches(pattern, path string) bool {
	if exact, ok := strings.CutSuffix(pattern, "$"); ok {
		return path == exact
	}
	return strings.HasPrefix(path, pattern)
}

// longest is the length of the longest pattern that matches, or -1.
func longest(patterns []string, path string) int {
	most := -1
	for _, p := range patterns {
		if matches(p, path) {
			most = max(most, len(p))
		}
	}
	return most
}
