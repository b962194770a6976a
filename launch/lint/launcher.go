package lint

import (
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/launch/lint/script"
)

// launch is a command that starts training processes on one node or on all: torchrun,
// accelerate launch, deepspeed.
type launch struct {
	*script.Command
	kind  string // torchrun, accelerate or deepspeed
	flags map[string]flag
	// open is set if a variable may hold more flags.
	open bool
	// program holds the words after the flags.
	program []script.Word
}

// flag is an option of a launcher; its name has - for _.
type flag struct {
	value script.Word
	at    int
}

// launcherFlags returns the flags without a value.
func launcherFlags(kind string) []string {
	switch kind {
	case "torchrun":
		return []string{
			"standalone", "module", "m", "no-python", "run-path", "use-env", "use_env", "virtual-local-rank",
			"help", "h",
		}
	case "deepspeed":
		return []string{
			"module", "no-python", "no-local-rank", "no-ssh", "no-ssh-check", "force-multi", "save-pid", "elastic-training",
			"bind-cores-to-rank", "help", "h",
		}
	}
	return []string{
		"multi-gpu", "cpu", "tpu", "use-xpu", "use-deepspeed", "use-fsdp", "use-megatron-lm", "quiet", "q",
		"m", "module", "no-python", "same-network", "debug", "use-parallelism-config", "enable-cpu-affinity",
		"standalone", "ipex", "help", "h", "use-mps-device",
	}
}

// newLaunch reads a launcher's command line. It returns nil for other commands.
func newLaunch(c *script.Command) *launch {
	kind, words := parseLauncher(c)
	if kind == "" {
		return nil
	}
	l := &launch{Command: c, kind: kind, flags: map[string]flag{}}
	without := launcherFlags(kind)
	for i := 0; i < len(words); i++ {
		w := words[i]
		// An unknown word before a flag or a Python file holds flags: $EXTRA train.py.
		isFlags := i+1 < len(words) && (words[i+1].HasPrefix("-") || strings.HasSuffix(words[i+1].Text(), ".py"))
		if r := w.Only(); r != nil && (r.NamesOptions() || isFlags) {
			l.open = true
			continue
		}
		if !w.HasPrefix("-") || len(w.Chars) < 2 {
			l.program = words[i:]
			return l
		}
		name, value, found := w.Cut('=')
		key := strings.ReplaceAll(strings.TrimLeft(name.Text(), "-"), "_", "-")
		bare := len(key) == 1 && i+1 < len(words) && strings.HasSuffix(words[i+1].Text(), ".py") // -u train.py
		if !found && !bare && !slices.Contains(without, key) && i+1 < len(words) {
			i++
			value = words[i]
		}
		l.flags[key] = flag{value, w.Origin()}
	}
	return l
}

func parseLauncher(c *script.Command) (kind string, words []script.Word) {
	switch name := c.Name(); {
	case name == "torchrun" || name == "deepspeed":
		return name, c.Words[1:]
	case name == "deepspeed.pt" || name == "ds":
		return "deepspeed", c.Words[1:]
	case name == "accelerate-launch":
		return "accelerate", c.Words[1:]
	case name == "accelerate" && c.Arg(1) == "launch":
		return "accelerate", c.Words[2:]
	case !pythonName.MatchString(name):
		return "", nil
	}
	for i := 1; i+1 < len(c.Words); i++ {
		if c.Words[i].Text() != "-m" {
			continue
		}
		switch c.Arg(i + 1) {
		case "torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic_launch":
			return "torchrun", c.Words[i+2:]
		case "accelerate.commands.launch":
			return "accelerate", c.Words[i+2:]
		case "accelerate", "accelerate.commands.accelerate_cli":
			if c.Arg(i+2) == "launch" {
				return "accelerate", c.Words[i+3:]
			}
		case "deepspeed.launcher.runner":
			return "deepspeed", c.Words[i+2:]
		}
		return "", nil
	}
	return "", nil
}

// findFlag returns the first of these flags that is set.
func (l *launch) findFlag(names ...string) (flag, bool) {
	for _, name := range names {
		if f, ok := l.flags[name]; ok {
			return f, true
		}
	}
	return flag{}, false
}

func (l *launch) nnodes() (flag, bool)   { return l.findFlag("nnodes", "num-machines", "num-nodes") }
func (l *launch) nproc() (flag, bool)    { return l.findFlag("nproc-per-node", "num-gpus") }
func (l *launch) nodeRank() (flag, bool) { return l.findFlag("node-rank", "machine-rank") }

// backend returns torchrun's rendezvous backend; the default is static.
func (l *launch) backend() string {
	f, ok := l.findFlag("rdzv-backend")
	if !ok {
		return "static"
	}
	text, _ := f.value.Literal()
	return text
}

// host returns the rendezvous host, if set.
func (l *launch) host() (script.Word, bool) {
	if f, ok := l.findFlag("rdzv-endpoint"); ok && l.kind == "torchrun" {
		host, _, found := f.value.CutLast(':')
		if !found {
			host = f.value
		}
		return host, true
	}
	if l.kind == "torchrun" && l.backend() != "static" {
		return script.Word{}, false
	}
	f, ok := l.findFlag("master-addr", "main-process-ip")
	return f.value, ok
}

func (l *launch) port() (script.Word, bool) {
	if f, ok := l.findFlag("rdzv-endpoint"); ok && l.kind == "torchrun" {
		_, port, found := f.value.CutLast(':')
		return port, found
	}
	f, ok := l.findFlag("master-port", "main-process-port")
	return f.value, ok
}

// nodeRange returns the number of nodes that the launcher waits for. known is false if the
// number is known only at run time.
func (l *launch) nodeRange(job step) (low, high int, known bool) {
	f, ok := l.nnodes()
	if !ok {
		return 1, 1, !l.open && l.kind == "torchrun"
	}
	first, second, found := f.value.Cut(':')
	if !found {
		second = first
	}
	low, high = job.resolveNumber(first), job.resolveNumber(second)
	return low, high, low > 0 && high > 0
}

// isMultiNode reports whether the launch certainly uses several nodes.
func (l *launch) isMultiNode(job step) bool {
	_, high, known := l.nodeRange(job)
	return known && high > 1
}

// isSingleNode reports whether the launch certainly uses one node.
func (l *launch) isSingleNode(job step) bool {
	_, high, known := l.nodeRange(job)
	return known && high == 1
}

// processesPerNode returns the number of processes on a node, if known, and the flag
// that sets it. st is its step.
func (l *launch) processesPerNode(st step) (n int, by flag, known bool) {
	if f, ok := l.nproc(); ok {
		n = st.resolveNumber(f.value)
		return n, f, n > 0
	}
	f, ok := l.findFlag("num-processes")
	if l.kind != "accelerate" || !ok {
		return 0, flag{}, false
	}
	n = st.resolveNumber(f.value)
	nodes, given := l.nnodes()
	if !given {
		_, config := l.findFlag("config-file")
		return n, f, n > 0 && !config
	}
	machines := st.resolveNumber(nodes.value)
	if n < 1 || machines < 1 {
		return 0, f, false
	}
	return n / machines, f, true
}

// perTask reports whether the launcher starts one process. Then one launcher per GPU is
// correct.
func (l *launch) perTask() bool {
	f, ok := l.nproc()
	if !ok {
		return l.kind == "torchrun" && !l.open
	}
	n, known := f.value.Int()
	return known && n == 1
}

// startsTrainer reports whether a command starts a training: a launcher, python with a
// script or a module, or a program of a framework.
func startsTrainer(c *script.Command) bool {
	if kind, _ := parseLauncher(c); kind != "" {
		return true
	}
	file, _ := pythonScript(c)
	return file != "" || slices.Contains([]string{
		"llamafactory-cli", "lmf", "axolotl", "composer", "colossalai", "swift", "xtuner",
	}, c.Name())
}
