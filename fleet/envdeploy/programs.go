package envdeploy

import (
	_ "embed"

	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/fleet/node"
)

//go:embed safe.sh
var safeShell string

var (
	lookProgram  = node.NewFollowUp(node.NewProgram("list_environments"))
	checkProgram = node.NewProgram("check_environment")
	agentProgram = node.NewProgram("environments")
)

// environmentRef names the environment for the programs on nodes.
type environmentRef struct {
	Folder string `json:"folder"` // "": the user's own
	Name   string `json:"name"`
	Safe   string `json:"safe"` // safe.sh
}

// refs lists the files of a set, the installer first; none if there is no set.
func refs(s *environment.Set) []change.Expected {
	if s == nil {
		return nil
	}
	all := []change.Expected{{Name: s.Installer.File, SHA256: s.Installer.SHA256}}
	for _, f := range s.Files {
		all = append(all, refTo(f))
	}
	return all
}

func refTo(f environment.File) change.Expected {
	return change.Expected{Name: f.File, SHA256: f.SHA256, Package: f.Name, Version: f.Version}
}

// request is the first input of the agent.
type request struct {
	change.Request
	environmentRef
	Python *pythonRef `json:"python"` // of the new environment, if one came along
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
