// Package rules holds the import rules: which package may import what. The test of this package
// enforces this table.
package rules

import (
	"slices"
	"strings"
)

// Module is the module's path.
const Module = "github.com/dsbuild/dsbuild"

// Rule lists the imports that the packages of a folder may not have. Deny and Allow are prefixes
// of import paths; a "$" at the end means exactly this path. If both match, the longer one
// decides. The rules do not apply to tests.
type Rule struct {
	// Folder is relative to the module; the rule applies to its subfolders too.
	Folder string
	Deny   []string
	Allow  []string
	Reason string
}

// Packages outside the module that some packages may not import.
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

// Imports returns the rules. Every package may use internal/fault and internal/lists.
func Imports() []Rule {
	rules := slices.Concat(pureRooms(), actingRooms(), innerRooms())
	for i := range rules {
		rules[i].Allow = append(rules[i].Allow, ours("internal/fault", "internal/lists")...)
	}
	return rules
}

// pureRooms are the packages that only compute.
func pureRooms() []Rule {
	return []Rule{
		{
			Folder: "wheel",
			Deny:   []string{Module},
			Allow:  ours("wheel"),
			Reason: "reading and writing a wheel needs no other package of ours",
		},
		{
			Folder: "compat",
			Deny:   ours("pipeline", "fleet/change", "fleet/deploy", "fleet/envdeploy", "inventory", "cmd", "launch", "fleet/ship", "release/nightly"),
			Reason: "the tables are pure: they neither build nor reach anything",
		},
		{
			Folder: "compat/evidence",
			Deny:   []string{Module},
			Allow:  ours("compat/evidence"),
			Reason: "whether an op has changed depends on DeepSpeed's sources alone",
		},
		{
			Folder: "dockerfiles",
			Deny:   []string{Module},
			Allow:  ours("dockerfiles"),
			Reason: "images and pins are data",
		},
		{
			Folder: "inventory",
			Deny: append(ours("wheel", "fleet/change", "fleet/deploy", "fleet/envdeploy", "cmd", "launch", "pipeline", "fleet/ship", "release/nightly", "internal/remote"),
				"net$", "net/http", "net/rpc", "golang.org/x/net", "os/exec", ssh, sftp, yaml),
			Reason: "reading an inventory contacts no node and runs nothing; internal/yamldoc reads YAML",
		},
		{
			Folder: "launch/lint",
			Deny:   []string{Module, cobra, "os/exec", "net$", "net/http", ssh},
			Allow:  ours("launch/lint", "inventory", "internal/lineerr"),
			Reason: "lint judges a script by its text alone: it runs nothing and contacts nothing",
		},
		{
			Folder: "launch/why",
			Deny:   []string{Module, cobra, yaml, "os/exec", "net$", "net/http", ssh},
			Allow:  ours("launch/why", "internal/ui", "internal/fault"),
			Reason: "a cause is found in the text of logs alone",
		},
	}
}

// actingRooms are the packages that do the work of the commands.
func actingRooms() []Rule { //nolint:revive // a table, however long
	return []Rule{
		{
			Folder: "cmd/dsbuild",
			Deny:   []string{ssh, sftp, yaml},
			Reason: "cmd knows commands and exit codes, not how nodes are reached or files are written",
		},
		{
			Folder: "fleet/node",
			Deny:   ours("pipeline", "fleet/change", "fleet/deploy", "fleet/envdeploy", "cmd", "launch", "fleet/ship", "release/nightly"),
			Reason: "the probe of a node does not depend on the caller",
		},
		{
			Folder: "fleet/node/agent",
			Deny:   ours("wheel", "compat", "inventory", "fleet/change", "fleet/deploy", "fleet/envdeploy", "pipeline", "launch", "cmd", "fleet/ship", "release/nightly"),
			Reason: "the session with a program on a node does not depend on the program",
		},
		{
			Folder: "pipeline",
			Deny:   append(ours("inventory", "fleet/change", "fleet/deploy", "fleet/envdeploy", "launch", "cmd", "fleet/ship", "release/nightly"), cobra),
			Reason: "building knows no nodes and no command line",
		},
		{
			Folder: "fleet",
			Deny:   append(ours("wheel", "compat", "fleet/change", "fleet/deploy", "fleet/envdeploy", "fleet/verify", "pipeline", "cmd", "launch", "fleet/ship", "release/nightly"), dagger, cobra, yaml),
			Reason: "fleet takes nodes through steps; it does not depend on what the steps do",
		},
		{
			Folder: "fleet/verify",
			Deny:   append(ours("fleet/change", "fleet/deploy", "fleet/envdeploy", "pipeline", "cmd", "launch", "fleet/ship", "release/nightly"), dagger, cobra, yaml),
			Reason: "verify changes no node, so it needs no package that does",
		},
		{
			Folder: "fleet/deploy",
			Deny:   append(ours("pipeline", "cmd", "launch", "fleet/ship", "release/nightly"), dagger, cobra, yaml),
			Reason: "deploy takes a finished wheel; it does not depend on how the wheel was made",
		},
		{
			Folder: "fleet/envdeploy",
			Deny:   append(ours("fleet/deploy", "pipeline", "cmd", "launch", "fleet/ship", "release/nightly"), dagger, cobra, yaml),
			Reason: "a whole environment is changed without the steps that change one wheel",
		},
		{
			Folder: "fleet/change",
			Deny: append(ours("fleet/deploy", "fleet/envdeploy", "fleet/verify", "pipeline", "cmd", "launch", "fleet/ship", "release/nightly"),
				dagger, cobra, yaml),
			Reason: "what all changes of nodes have in common does not depend on what they change",
		},
		{
			Folder: "release/signing",
			Deny:   []string{Module, cobra, sftp, "net$", "net/http", "os/exec"},
			Allow:  ours("release/signing", "wheel", "internal/yamldoc", "internal/lineerr", "internal/atomicfile"),
			Reason: "a judgement of a wheel rests on its files and the policy alone",
		},
		{
			Folder: "fleet/environment",
			Deny:   append(ours("inventory", "fleet/change", "fleet/deploy", "fleet/envdeploy", "fleet", "fleet/verify", "pipeline", "cmd", "launch", "fleet/ship", "release/nightly"), dagger, cobra, ssh, yaml),
			Allow:  ours("fleet/node"),
			Reason: "an environment is files for kinds of nodes: it neither reaches nodes nor builds",
		},
		{
			Folder: "fleet/ship",
			Deny:   append(ours("cmd", "release/nightly", "launch"), cobra, ssh, dagger),
			Reason: "ship combines pipeline and deploy, and knows nothing below them",
		},
		{
			Folder: "release/nightly",
			Deny:   append(ours("cmd", "fleet/ship", "launch"), cobra, ssh, dagger, yaml),
			Reason: "nightly combines pipeline, index and deploy, and knows nothing below them",
		},
		{
			Folder: "launch",
			Deny:   ours("pipeline", "fleet/change", "fleet/deploy", "fleet/envdeploy", "cmd", "fleet/ship", "release/nightly"),
			Reason: "a job runs on nodes that are ready: it neither builds nor deploys",
		},
		{
			Folder: "release/index",
			Deny:   []string{Module},
			Allow:  ours("release/index", "wheel", "internal/atomicfile", "internal/filelock"),
			Reason: "the index is made of wheels alone",
		},
	}
}

// innerRooms are the packages that serve the others.
func innerRooms() []Rule { //nolint:revive // a table, however long
	return []Rule{
		{
			Folder: "internal/remote",
			Deny:   ours("inventory", "wheel", "fleet/change", "fleet/deploy", "fleet/envdeploy", "fleet", "fleet/verify", "pipeline", "compat", "fleet/node", "launch", "cmd", "fleet/ship", "release/nightly"),
			Reason: "a connection runs commands and puts files; it does not depend on their purpose",
		},
		{
			Folder: "internal/slurm",
			Deny:   ours("wheel", "fleet/change", "fleet/deploy", "fleet/envdeploy", "fleet", "fleet/verify", "pipeline", "compat", "fleet/node", "launch", "cmd", "fleet/ship", "release/nightly"),
			Reason: "Slurm runs commands and brings files; it does not depend on their purpose",
		},
		{
			Folder: "internal/connect",
			Deny:   ours("wheel", "fleet/change", "fleet/deploy", "fleet/envdeploy", "fleet", "fleet/verify", "pipeline", "compat", "fleet/node", "launch", "cmd", "fleet/ship", "release/nightly"),
			Reason: "the way to a host does not depend on the work there",
		},
		{
			Folder: "internal/fanout",
			Deny:   []string{Module},
			Allow:  ours("internal/fanout"),
			Reason: "running many items at once does not depend on the items",
		},
		{
			Folder: "internal/testkit",
			Reason: "kits of tests may use what they test",
		},
		{
			Folder: "internal/ui",
			Deny:   []string{Module},
			Allow:  ours("internal/ui"),
			Reason: "output and questions are the same for every domain",
		},
		{
			Folder: "internal/pyindex",
			Deny:   []string{Module},
			Allow:  ours("internal/pyindex", "internal/httpclient"),
			Reason: "reading an index does not depend on the project",
		},
		{
			Folder: "internal/httpclient",
			Deny:   []string{Module},
			Allow:  ours("internal/httpclient"),
			Reason: "the policy of requests does not depend on what is requested",
		},
		{
			Folder: "internal/lineerr",
			Deny:   []string{Module},
			Allow:  ours("internal/lineerr"),
			Reason: "a position in a file does not depend on the file's meaning",
		},
		{
			Folder: "internal/scratch",
			Deny:   []string{Module},
			Allow:  ours("internal/scratch"),
			Reason: "a temporary directory does not depend on its contents",
		},
		{
			Folder: "internal/filelock",
			Deny:   []string{Module},
			Allow:  ours("internal/filelock"),
			Reason: "a lock does not depend on what it protects",
		},
		{
			Folder: "internal/private",
			Deny:   []string{Module},
			Allow:  ours("internal/private"),
			Reason: "who can change a file does not depend on its contents",
		},
		{
			Folder: "internal/secrets",
			Deny:   []string{Module},
			Allow:  ours("internal/secrets", "internal/ui"),
			Reason: "hiding a value does not depend on who writes the text",
		},
		{
			Folder: "internal/htmlpage",
			Deny:   []string{Module},
			Allow:  ours("internal/htmlpage", "internal/ui"),
			Reason: "the policy of a page does not depend on its contents",
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
			Allow:  ours("internal/yamldoc", "internal/lineerr"),
			Reason: "reading YAML does not depend on the file's meaning",
		},
		{
			Folder: "internal/nodeerr",
			Deny:   []string{Module},
			Allow:  ours("internal/nodeerr"),
			Reason: "every package may use it",
		},
		{
			Folder: "internal/lists",
			Deny:   []string{Module},
			Allow:  ours("internal/lists"),
			Reason: "every package uses it",
		},
		{
			Folder: "internal/fault",
			Deny:   []string{Module},
			Allow:  ours("internal/fault"),
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

// Everywhere returns the rules for all folders except those in Folders.
func Everywhere() []Except {
	return []Except{
		{
			Folders: []string{"internal/testkit"},
			Deny:    Module + "/internal/testkit",
			Reason:  "kits are for tests: the program must not need them",
		},
		{
			Folders: []string{"pipeline/daggerbuilder"},
			Deny:    dagger,
			Reason:  "no dagger types across package borders",
		},
		{
			Folders: []string{"internal/remote", "internal/testkit", "release/signing"},
			Deny:    ssh,
			Reason:  "no ssh types across package borders",
		},
	}
}

// Except is an import that only some folders may have.
type Except struct {
	Folders []string
	Deny    string
	Reason  string
}

// Violation returns why a package of this module, given by its folder, may not import path; ""
// if it may. Of two rules, the one for the deeper folder decides.
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

// matches compares a path with a pattern: a prefix, or with "$" the whole path.
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
