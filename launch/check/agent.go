package check

import (
	"context"
	"encoding/json"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
	"github.com/dsbuild/dsbuild/internal/remote"
)

var agentProgram = node.NewProgram("check_cluster")

// agentRequest is the first input of an agent.
type agentRequest struct {
	LimitS  float64  `json:"limit_s"` // of the survey
	Run     string   `json:"run"`     // names this check in files
	Token   string   `json:"token"`   // that callers must send
	First   bool     `json:"first"`   // the first node leaves a file for the others to see
	Master  string   `json:"master"`
	Devices bool     `json:"devices"`
	Data    []string `json:"data"`
	Output  []string `json:"output"`
}

// event reports the stage of a process of a collective.
type event struct {
	Rank    int     `json:"rank"`
	Stage   string  `json:"stage"`
	Error   string  `json:"error"`
	Seconds float64 `json:"seconds"`
	Latency float64 `json:"latency"`
	Bytes   int64   `json:"bytes"`

	from *member // the sender: a node reports only its own processes
}

// decodeEvent decodes a message that is not an answer.
func decodeEvent(m json.RawMessage) (event, error) {
	var got struct {
		Event event `json:"event"`
	}
	err := node.Decode(m, &got)
	return got.Event, err
}

// startAgent starts an agent and waits for its survey.
func startAgent(
	ctx context.Context, r remote.Runner, python string, req agentRequest, events func(event), into *survey,
) (*agent.Session, error) {
	return agent.Start(ctx, r, agent.Options{
		Script: node.Script{Python: python, Program: agentProgram, Request: req},
		Event: func(m json.RawMessage) error {
			e, err := decodeEvent(m)
			if err == nil {
				events(e)
			}
			return err
		},
	}, into)
}
