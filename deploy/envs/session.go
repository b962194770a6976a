package envs

import (
	_ "embed"
	"strconv"

	"github.com/dsbuild/dsbuild/agent"
	"github.com/dsbuild/dsbuild/deploy/changes"
	"github.com/dsbuild/dsbuild/environment"
	"github.com/dsbuild/dsbuild/node"
	"github.com/dsbuild/dsbuild/verify"
)

// The programs on nodes are made of these sources: python.py, safe.sh, place.py, for the agent
// known.py, then one of the others.
var (
	//go:embed safe.sh
	safeShell string
	//go:embed place.py
	placeSource string
	//go:embed look.py
	lookSource string
	//go:embed check.py
	checkSource string
	//go:embed known.py
	knownSource string
	//go:embed agent.py
	agentSource string
)

var (
	safeSource   = "SAFE = " + strconv.QuoteToASCII(safeShell) // Python reads this quoting, too
	lookProgram  = node.NewFollowUp(pythonSource, safeSource, placeSource, lookSource)
	checkProgram = node.NewProgram(pythonSource, safeSource, placeSource, checkSource)
	agentProgram = agent.NewProgram(verify.FilesSource(), changes.Source(), node.ProcessesSource(), pythonSource, safeSource, placeSource, knownSource, agentSource)
)

// environmentRef names the environment for the programs on nodes.
type environmentRef struct {
	Folder string `json:"folder"` // "": the user's own
	Name   string `json:"name"`
}

// fileRef is a file that an agent should have.
type fileRef struct {
	Name    string `json:"name"`
	SHA256  string `json:"sha256"`
	Package string `json:"package"` // "" for the installer, which is no part of the environment
	Version string `json:"version"`
}

// refs lists the files of a set, the installer first; none if there is no set.
func refs(s *environment.Set) []fileRef {
	if s == nil {
		return nil
	}
	all := []fileRef{{Name: s.Installer.File, SHA256: s.Installer.SHA256}}
	for _, f := range s.Files {
		all = append(all, refTo(f))
	}
	return all
}

func refTo(f environment.File) fileRef { return fileRef{f.File, f.SHA256, f.Name, f.Version} }

// sessionRequest is the agent's start request.
type sessionRequest struct {
	environmentRef
	Files      []fileRef  `json:"files"`
	Python     *pythonRef `json:"python"` // of the new environment, if one came along
	StatusOnly bool       `json:"look"`   // report the state and end
	Run        string     `json:"run"`
	Label      string     `json:"label"`
	By         string     `json:"by"`
	LockS      float64    `json:"lock_s"`
}

// beginReply is the agent's first answer: the state once the agent holds the lock.
type beginReply struct {
	Inbox    string                `json:"inbox"`
	Arrived  []string              `json:"arrived"` // names of files in the inbox that need not be sent again
	Have     []string              `json:"have"`    // sha256 of files that the node keeps
	Current  *InstalledEnvironment `json:"current"`
	Previous *InstalledEnvironment `json:"previous"`
	Repaired bool                  `json:"repaired"`
	Run      string                `json:"run"` // the run that made the last switch
}

// environmentFiles is the state of an environment's files.
type environmentFiles struct {
	Name     string                    `json:"name"`
	Python   string                    `json:"python"`
	Digest   string                    `json:"digest"`      // of all files that belong to packages
	Tree     string                    `json:"python_tree"` // of its Python, if one came along
	Packages map[string]packageOnANode `json:"packages"`
	Wrong    []string                  `json:"wrong"` // files that are not as RECORD says
	More     int                       `json:"more"`  // how many more there are
}

type packageOnANode struct {
	Version string `json:"version"`
	Digest  string `json:"digest"`
}

// undoReply is the agent's answer to undo.
type undoReply struct {
	Current  *InstalledEnvironment `json:"current"`
	Recorded bool                  `json:"recorded"` // the switch was made and stays
	Finished bool                  `json:"finished"` // the next run has nothing left to repair
}
