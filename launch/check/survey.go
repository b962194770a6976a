package check

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/dsbuild/dsbuild/fleet/node"
)

// survey is an agent's first answer: facts about its node.
type survey struct {
	Host       part[resolved]                 `json:"host"`   // its own name
	Master     part[resolved]                 `json:"master"` // the master's address
	Interfaces part[[]nic]                    `json:"interfaces"`
	Variables  part[map[string]string]        `json:"variables"`
	Limits     part[limits]                   `json:"limits"`
	Operators  part[operators]                `json:"operators"`
	Triton     part[cacheFolder]              `json:"triton"`
	NCCLFiles  part[[]setting]                `json:"nccl_files"`
	Disks      map[string]part[room]          `json:"disks"`
	Devices    map[string]part[programOutput] `json:"devices"`
	Data       map[string]part[dataset]       `json:"data"`
	Output     map[string]part[room]          `json:"output"`
	Port       int                            `json:"port"` // answers callers
}

// part is the answer to one query: a value, an error, or a timeout.
type part[T any] struct {
	OK    *T     `json:"ok"`
	Error string `json:"error"`
	Hung  bool   `json:"hung"`
}

// failureReason returns the reason of a failure, or "".
func (p part[T]) failureReason() string {
	switch {
	case p.Hung:
		return "timed out after " + lookLimit.String()
	case p.Error == "" && p.OK == nil:
		return "no answer"
	case p.Error == "":
		return ""
	}
	return node.NewNodeError(p.Error).Error()
}

// resolved is a name with its addresses on a node.
type resolved struct {
	Name      string   `json:"name"`
	Addresses []string `json:"addresses"`
	Error     string   `json:"error"`
}

// nic is an address with its interface.
type nic struct {
	Name    string `json:"name"`
	Address string `json:"address"`
}

// routed is a node's route to the master: interface and own address.
type routed struct {
	Interface string `json:"interface"`
	Address   string `json:"address"`
}

// room describes the free space of a file system.
type room struct {
	What       string `json:"what"`
	Path       string `json:"path"` // for output: as the user gave it; else the checked folder
	Free       int64  `json:"free"`
	Inodes     int64  `json:"inodes"` // -1: the file system has no count
	Unwritable string `json:"unwritable"`
	Missing    bool   `json:"missing"` // for output: the directory does not exist yet
}

// limits are the process limits that matter for RDMA.
type limits struct {
	MemLock int64    `json:"memlock"` // bytes; -1: no limit
	RDMA    []string `json:"rdma"`    // devices
	CMA     int64    `json:"cma"`     // bytes of the kernel's contiguous memory area, or -1 if unknown
}

// cacheFolder is where Triton keeps compiled kernels.
type cacheFolder struct {
	Folder string `json:"folder"`
	Type   string `json:"type"` // of its file system; empty without Triton in the environment
}

// setting is a line of a configuration file: [path, line].
type setting struct{ path, line string }

// UnmarshalJSON implements json.Unmarshaler.
func (s *setting) UnmarshalJSON(text []byte) error { return unmarshalPair(text, &s.path, &s.line) }

// operators describes the folder in which torch compiles operators.
type operators struct {
	Folder string      `json:"folder"`
	Type   string      `json:"type"` // of its file system, unless it is the default and does not exist
	Locks  []staleLock `json:"locks"`
}

// staleLock is a lock that its build left behind: [path, seconds].
type staleLock struct {
	path    string
	seconds float64
}

// UnmarshalJSON implements json.Unmarshaler.
func (l *staleLock) UnmarshalJSON(text []byte) error { return unmarshalPair(text, &l.path, &l.seconds) }

// dataset is a folder or file that all nodes must see.
type dataset struct {
	Path    string `json:"path"`
	Entries int    `json:"entries"`
	Bytes   int64  `json:"bytes"`
	Digest  string `json:"digest"` // of names and sizes
}

// programOutput is the output of a program.
type programOutput struct {
	Status int      `json:"status"`
	Lines  []string `json:"lines"`
}

// unmarshalPair reads a JSON array of two.
func unmarshalPair(text []byte, first, second any) error {
	var pair []json.RawMessage
	if err := json.Unmarshal(text, &pair); err != nil {
		return err
	}
	if len(pair) != 2 {
		return fmt.Errorf("got %d values, want 2", len(pair))
	}
	return errors.Join(json.Unmarshal(pair[0], first), json.Unmarshal(pair[1], second))
}
