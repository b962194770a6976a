package submit

import "regexp"

// Blame is the first failure in srun's own messages.
type Blame struct {
	// Nodes is a node, or an expression for several.
	Nodes string
	// Why is srun's reason, such as "task 1: Exited with exit code 3".
	Why string
}

// srun's own messages begin the line. With --label, the output of tasks begins with
// their number.
var (
	failedTask = regexp.MustCompile(`^srun: error: ([A-Za-z0-9][A-Za-z0-9._,\[\]-]*): (tasks? [0-9,-]+: .+)$`)
	failedNode = regexp.MustCompile(`^srun: error: (Node failure) on ([A-Za-z0-9][A-Za-z0-9._,\[\]-]*)`)
)

// parseBlame reads a line of a job's output.
func parseBlame(line string) (Blame, bool) {
	if m := failedTask.FindStringSubmatch(line); m != nil {
		return Blame{m[1], m[2]}, true
	}
	if m := failedNode.FindStringSubmatch(line); m != nil {
		return Blame{m[2], m[1]}, true
	}
	return Blame{}, false
}
