package submit

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// State is a job's state in Slurm.
type State struct {
	ID string
	// Name is Slurm's name of the state, such as PENDING or NODE_FAIL.
	Name string
	// Reason is why a job is not running, such as Resources. It may be empty.
	Reason string
	// Nodes are the job's nodes, as an expression such as n[1-4]. It is empty before
	// the job has nodes.
	Nodes string
	// BatchHost is the node of the batch script.
	BatchHost string
	// Output is the file of the script's output.
	Output string
	// Code is the script's exit code, and Signal the signal that ended it.
	Code, Signal int
	// Restarts counts the requeues of the job.
	Restarts int
}

// Ended reports whether the state is final.
func (s State) Ended() bool {
	return slices.Contains([]string{
		"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED",
		"OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "REVOKED",
	}, s.Name)
}

// Started reports whether the script runs or has run.
func (s State) Started() bool {
	return !slices.Contains([]string{"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"}, s.Name)
}

// State returns the state of a job.
func (s Slurm) State(ctx context.Context, id string) (State, error) {
	said, err := s.runProgram(ctx, nil, "scontrol", "--oneliner", "show", "job", id)
	if err != nil {
		return State{}, err
	}
	return parseState(id, said)
}

// field begins a field of scontrol's: values may hold spaces, and do in paths.
var field = regexp.MustCompile(`(?:^|\s)([A-Z][A-Za-z]*)=`)

// parseState reads a line of "scontrol --oneliner show job".
func parseState(id, line string) (State, error) {
	values := map[string]string{}
	all := field.FindAllStringSubmatchIndex(line, -1)
	for i, at := range all {
		end := len(line)
		if i+1 < len(all) {
			end = all[i+1][0]
		}
		if name := line[at[2]:at[3]]; values[name] == "" {
			values[name] = strings.TrimSpace(line[at[1]:end])
		}
	}
	if values["JobId"] != id || values["JobState"] == "" {
		return State{}, fmt.Errorf("unexpected scontrol output for job %s: %.200q", id, line)
	}
	for name, value := range values {
		if value == "(null)" || value == "None" {
			values[name] = ""
		}
	}
	st := State{
		ID: id, Name: values["JobState"], Reason: values["Reason"], Nodes: values["NodeList"],
		BatchHost: values["BatchHost"], Output: values["StdOut"],
	}
	code, signal, _ := strings.Cut(values["ExitCode"], ":")
	st.Code, _ = strconv.Atoi(code)                   //nolint:errcheck // 0 where Slurm says nothing
	st.Signal, _ = strconv.Atoi(signal)               //nolint:errcheck // 0 where Slurm says nothing
	st.Restarts, _ = strconv.Atoi(values["Restarts"]) //nolint:errcheck // 0 where Slurm says nothing
	return st, nil
}
