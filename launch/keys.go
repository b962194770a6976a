package launch

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// valueKind is the type of a key's value.
type valueKind int

const (
	text      valueKind = iota
	yesNo               // true or false
	list                // texts; by flags, the flag again and again
	variables           // names and values
)

// String names the type in messages.
func (k valueKind) String() string {
	return [...]string{"a string", "true or false", "a list of strings", "a mapping of names to values"}[k]
}

// Key is a setting of a job, in a file or by a flag.
type Key struct {
	Name        string // in a file
	Flag        string // "" where it is the name
	Placeholder string // of the flag's value
	Help        string
	Kinds       []Launcher // that use the key; nil: all
	kind        valueKind
	set         func(*builder, Setting)
	sbatch      string // the options of sbatch for which the key stands, without their dashes
}

// FlagName is the name of the flag.
func (k Key) FlagName() string { return cmp.Or(k.Flag, k.Name) }

// IsBool reports whether the value is true or false.
func (k Key) IsBool() bool { return k.kind == yesNo }

// Repeats reports whether the flag may be given several times.
func (k Key) Repeats() bool { return k.kind == list || k.kind == variables }

// KeyOfSbatch returns the key that stands for an option of sbatch: its long name or its letter,
// without dashes.
func KeyOfSbatch(option string) (Key, bool) {
	all := Keys()
	i := slices.IndexFunc(all, func(k Key) bool { return slices.Contains(strings.Fields(k.sbatch), option) })
	if i < 0 {
		return Key{}, false
	}
	return all[i], true
}

// For reports whether a kind uses the key.
func (k Key) For(kind Launcher) bool { return k.Kinds == nil || slices.Contains(k.Kinds, kind) }

// TakesInventory reports whether an inventory can choose the nodes of a kind.
func TakesInventory(kind Launcher) bool { return slices.Contains(byHand(), kind) }

// Groups of kinds that share keys.
func bySlurm() []Launcher      { return []Launcher{Slurm, JAX} }
func byTorchrun() []Launcher   { return []Launcher{Slurm, Torchrun, AIStation, K8s, Docker} }
func byHand() []Launcher       { return []Launcher{Torchrun, JAX, Docker} }
func inContainers() []Launcher { return []Launcher{K8s, Docker, AIStation, Slurm, JAX} }

// Keys are all settings except the script and its arguments.
func Keys() []Key {
	const names = `[A-Za-z0-9_.,-]{1,200}`
	k8s := []Launcher{K8s}
	const platforms = `(cuda|rocm|gpu|oneapi|tpu|cpu)` // those of jax/_src/xla_bridge.py; gpu is any of the first three
	return append([]Key{
		// The size of the job.
		{Name: "name", sbatch: "job-name J", Placeholder: "NAME", Help: "name of the job (default: train)", set: matchingText(`[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?`, "letters, digits, '.', '_' and '-', 63 at most", func(j *Job) *string { return &j.Name })},
		{Name: "preset", Placeholder: "SIZE", Help: "small (2 nodes x 8 GPUs), medium (4 x 8) or large (8 x 8)", set: setPreset},
		{Name: "nodes", sbatch: "nodes N", Placeholder: "N|MIN:MAX", Help: "number of nodes, or minimum and maximum of an elastic job (default: 1, or those of an inventory)", set: setNodes},
		{Name: "gpus", sbatch: "gres gpus G gpus-per-node gpus-per-task", Placeholder: "N", Help: "GPUs of each node; 0 for none. For Slurm also with their type: h100:8", set: setGPUs},
		{Name: "procs", sbatch: "ntasks n ntasks-per-node tasks-per-node", Placeholder: "N", Help: "processes of each node (default: one for each GPU; under JAX one)", set: numberBetween(1, 1024, func(j *Job) *int { return &j.Procs })},
		{Name: "cpus", sbatch: "cpus-per-task c", Placeholder: "N", Help: "CPUs of each task (default: one for each process, plus two; eight for each if the optimizer runs on the CPU)", Kinds: []Launcher{Slurm, JAX, AIStation, K8s}, set: numberBetween(1, 4096, func(j *Job) *int { return &j.CPUs })},
		// How the nodes meet.
		{Name: "master", Placeholder: "HOST", Help: "address of the first node, where all nodes meet (default: the inventory's first)", Kinds: byHand(), set: matchingText(`[A-Za-z0-9_:][A-Za-z0-9._:-]{0,252}`, "a host name or an address", func(j *Job) *string { return &j.Master })},
		{Name: "port", Placeholder: "PORT", Help: "port of the first node (default: 29500; under Slurm from the job's number)", set: numberBetween(1024, 65535, func(j *Job) *int { return &j.Port })},
		{Name: "rdzv-id", Placeholder: "ID", Help: "name of the rendezvous, unique among running jobs (default: the job's name; under Slurm its number)", Kinds: byTorchrun(), set: matchingText(`[A-Za-z0-9._-]{1,128}`, "letters, digits, '.', '_' and '-'", func(j *Job) *string { return &j.RdzvID })},
		{Name: "rendezvous", Placeholder: "HOW", Help: "static (fixed ranks) or c10d (the nodes agree on their ranks; required for MIN:MAX)", Kinds: []Launcher{Slurm, Torchrun, Docker}, set: oneOf(func(j *Job) *string { return &j.Rendezvous }, "static", "c10d")},
		{Name: "max-restarts", Placeholder: "N", Help: "number of restarts of the processes (default: 0; 3 for MIN:MAX)", Kinds: byTorchrun(), set: numberBetween(0, 1000, func(j *Job) *int { return &j.MaxRestarts })},
		{Name: "join-timeout", Placeholder: "SECONDS", Help: "time limit for the nodes to meet at the start (default: torch's 900, by c10d 600; JAX's 300; 3600 for one-node Slurm jobs)", Kinds: []Launcher{Slurm, Torchrun, JAX, AIStation, K8s, Docker}, set: numberBetween(1, 7*24*3600, func(j *Job) *int { return &j.JoinTimeout })},
		// Slurm.
		{Name: "slurm-form", Flag: "form", Placeholder: "FORM", Help: "job (one job of all nodes) or workers (one-node jobs that meet) (default: job)", Kinds: []Launcher{Slurm}, set: oneOf(func(j *Job) *string { return &j.SlurmForm }, "job", "workers")},
		{Name: "time", sbatch: "time t", Placeholder: "TIME", Help: "longest run: minutes, HH:MM:SS or D-HH:MM:SS (default: 20:00:00)", Kinds: bySlurm(), set: matchingText(`[0-9]+|[0-9]+:[0-9]{2}(:[0-9]{2})?|[0-9]+-[0-9]+(:[0-9]{2}){0,2}|infinite|UNLIMITED`, "minutes, HH:MM:SS or D-HH:MM:SS", func(j *Job) *string { return &j.Time })},
		{Name: "partition", sbatch: "partition p", Placeholder: "NAME", Help: "partition of Slurm (default: the cluster's)", Kinds: bySlurm(), set: matchingText(names, "names, separated by commas", func(j *Job) *string { return &j.Partition })},
		{Name: "account", sbatch: "account A", Placeholder: "NAME", Help: "account to charge (default: the user's)", Kinds: bySlurm(), set: matchingText(names, "a name", func(j *Job) *string { return &j.Account })},
		{Name: "qos", sbatch: "qos q", Placeholder: "NAME", Help: "quality of service (default: the account's)", Kinds: bySlurm(), set: matchingText(names, "a name", func(j *Job) *string { return &j.QOS })},
		{Name: "nodelist", sbatch: "nodelist w", Placeholder: "NODES", Help: "use these nodes, in Slurm's syntax: gpu[01-04]", Kinds: bySlurm(), set: matchingText(`[A-Za-z0-9_.,\[\]-]+`, "a node expression such as gpu[01-04]", func(j *Job) *string { return &j.Nodelist })},
		{Name: "constraint", sbatch: "constraint C", Placeholder: "FEATURES", Help: "only nodes with these features, in Slurm's syntax: h100&ib", Kinds: bySlurm(), set: matchingText(`[A-Za-z0-9_.,:&|*()\[\]=-]{1,200}`, "features joined by & or |, such as h100&ib", func(j *Job) *string { return &j.Constraint })},
		{Name: "mem", sbatch: "mem", Placeholder: "SIZE", Help: "memory of each node, such as 200G; 0 for all of it (default: the cluster's)", Kinds: bySlurm(), set: matchingText(`[0-9]{1,9}[KMGT]?`, "a size such as 200G, or 0", func(j *Job) *string { return &j.Mem })},
		{Name: "exclusive", sbatch: "exclusive", Help: "no other job on the nodes", Kinds: bySlurm(), kind: yesNo, set: yesNoValue(func(j *Job) *bool { return &j.Exclusive })},
		{Name: "sbatch", Placeholder: "OPTION", Help: "one more option of sbatch, such as --sbatch=--mail-type=END", Kinds: bySlurm(), kind: list, set: setSbatch},
		{Name: "requeue", sbatch: "requeue", Help: "put the job back into the queue after a preemption or a lost node; the program must load its last checkpoint (default: the cluster's setting)", Kinds: bySlurm(), kind: yesNo, set: yesNoValue(func(j *Job) *bool { return &j.Requeue })},
		{Name: "container", Placeholder: "HOW", Help: "run the program in --image on the nodes: pyxis (srun --container-image) or apptainer", Kinds: bySlurm(), set: oneOf(func(j *Job) *string { return &j.Container }, "pyxis", "apptainer")},
		{Name: "log", sbatch: "output error e", Placeholder: "FILE", Help: "file of the output, with Slurm's %x, %j, %N (default: %x-%j.out)", Kinds: bySlurm(), set: matchingText(`[A-Za-z0-9_./%+@=:,-]{1,500}`, "a path without spaces and quotes", func(j *Job) *string { return &j.Log })},
		// The program and its surroundings.
		{Name: "env", sbatch: "export", Placeholder: "NAME[=VALUE]", Help: "variable of the job; without a value, taken from the environment that starts the job", kind: variables, set: setEnv},
		{Name: "nccl-debug", Placeholder: "LEVEL", Help: "set NCCL_DEBUG: info, warn, trace, version (default: not set)", set: oneOf(func(j *Job) *string { return &j.NCCLDebug }, "version", "warn", "info", "trace")},
		{Name: "setup", Placeholder: "LINE", Help: "shell line run before the job (module load …, source …/activate)", Kinds: []Launcher{Slurm, Torchrun, JAX, AIStation}, kind: list, set: setSetup},
		{Name: "workdir", sbatch: "chdir D", Placeholder: "DIR", Help: "working folder of the script (default: the folder where you start it; on nodes that dsbuild reaches over SSH the home folder)", set: onePath(func(j *Job) *string { return &j.WorkDir })},
		{Name: "python", Placeholder: "PYTHON", Help: "interpreter on the nodes (default: the inventory's, or the one on PATH)", set: onePath(func(j *Job) *string { return &j.Python })},
		// Containers.
		{Name: "image", Placeholder: "IMAGE", Help: "image of the containers", Kinds: inContainers(), set: setImage},
		{Name: "mount", Placeholder: "SOURCE:TARGET[:ro]", Help: "mount a folder into the containers", Kinds: inContainers(), kind: list, set: setMounts},
		{Name: "shm-size", Placeholder: "SIZE", Help: "shared memory of a container, such as 16Gi (default: the host's; Kubernetes: half the memory)", Kinds: []Launcher{K8s, Docker}, set: matchingText(`[0-9]+(Mi|Gi)`, "a size such as 16Gi", func(j *Job) *string { return &j.ShmSize })},
		// Kubernetes.
		{Name: "memory", Placeholder: "SIZE", Help: "memory request and limit of each pod, such as 256Gi, including shared memory (default: no limit)", Kinds: k8s, set: matchingText(`[1-9][0-9]{0,8}(Mi|Gi|Ti)`, "a size such as 256Gi", func(j *Job) *string { return &j.Memory })},
		{Name: "rdma", Placeholder: "RESOURCE[=N]", Help: "network cards of each pod, by the resource name of the cluster's device plugin, such as rdma/hca=1; adds IPC_LOCK", Kinds: k8s, set: setRDMA},
		{Name: "toleration", Placeholder: "KEY[=VALUE][:EFFECT]", Help: "tolerate this taint of nodes, such as nvidia.com/gpu:NoSchedule", Kinds: k8s, kind: list, set: setTolerations},
		{Name: "pull-secret", Placeholder: "NAME", Help: "secret for pulling the image", Kinds: k8s, set: matchingText(`[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?`, "the name of a secret", func(j *Job) *string { return &j.PullSecret })},
		{Name: "gang", Placeholder: "BY", Help: "start all pods or none, by: kueue, volcano (pytorchjob) or coscheduling (default: kueue with --queue)", Kinds: k8s, set: oneOf(func(j *Job) *string { return &j.Gang }, "kueue", "volcano", "coscheduling")},
		{Name: "queue", Placeholder: "NAME", Help: "queue of Kueue, or of Volcano with --gang volcano", Kinds: k8s, set: matchingText(`[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?`, "the name of a queue", func(j *Job) *string { return &j.Queue })},
		{Name: "namespace", Placeholder: "NAME", Help: "namespace of Kubernetes (default: kubectl's)", Kinds: []Launcher{K8s}, set: matchingText(`[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?`, "a DNS label", func(j *Job) *string { return &j.Namespace })},
		{Name: "k8s-form", Flag: "form", Placeholder: "FORM", Help: "pytorchjob (Training Operator v1) or trainjob (Kubeflow Trainer v2) (default: pytorchjob)", Kinds: []Launcher{K8s}, set: oneOf(func(j *Job) *string { return &j.K8sForm }, "pytorchjob", "trainjob")},
		// JAX.
		{Name: "jax-form", Flag: "form", Placeholder: "FORM", Help: "slurm or manual (a script on each host) (default: slurm; manual with an inventory)", Kinds: []Launcher{JAX}, set: oneOf(func(j *Job) *string { return &j.JAXForm }, "slurm", "manual")},
		{Name: "jax-platforms", Flag: "platforms", Placeholder: "LIST", Help: "JAX_PLATFORMS: cuda, rocm, gpu, oneapi, tpu, cpu, several joined by commas (default: cuda; cpu without GPUs)", Kinds: []Launcher{JAX}, set: matchingText(platforms+"(,"+platforms+")*", "cuda, rocm, gpu, oneapi, tpu or cpu, several joined by commas", func(j *Job) *string { return &j.JAXPlatforms })},
		{Name: "preallocate", Help: "let XLA allocate its GPU memory at the start (default: false)", Kinds: []Launcher{JAX}, kind: yesNo, set: yesNoValue(func(j *Job) *bool { return &j.Preallocate })},
		{Name: "mem-fraction", Placeholder: "SHARE", Help: "share of GPU memory for XLA (default: 0.9; try 0.8 if it runs out)", Kinds: []Launcher{JAX}, set: matchingText(`0?\.[0-9]{1,3}`, "a share such as 0.9", func(j *Job) *string { return &j.MemFraction })},
	}, deepspeedKeys()...)
}

func deepspeedKeys() []Key {
	configs := takesConfig()
	return []Key{
		{Name: "ds-config", Flag: "config", Placeholder: "FILE", Help: "check this DeepSpeed configuration instead of rendering one", Kinds: configs, set: onePath(func(j *Job) *string { return &j.DS.File })},
		{Name: "zero", Placeholder: "STAGE", Help: "render a DeepSpeed configuration with this ZeRO stage: 0 to 3 (default: 2 with another setting of one)", Kinds: configs, set: numberBetween(0, 3, func(j *Job) *int { return &j.DS.Stage })},
		{Name: "offload", Placeholder: "WHERE", Help: "keep the optimizer (with ZeRO-3 the parameters too) in: none, cpu, nvme (default: none)", Kinds: configs, set: oneOf(func(j *Job) *string { return &j.DS.Offload }, "none", "cpu", "nvme")},
		{Name: "nvme-path", Placeholder: "DIR", Help: "folder on the nodes' NVMe disks, for --offload nvme", Kinds: configs, set: onePath(func(j *Job) *string { return &j.DS.NVMePath })},
		{Name: "precision", Placeholder: "HOW", Help: "bf16 (Ampere and newer), fp16 or fp32 (default: bf16)", Kinds: configs, set: oneOf(func(j *Job) *string { return &j.DS.Precision }, "bf16", "fp16", "fp32")},
		{Name: "train-batch", Placeholder: "N", Help: "samples per step over all processes (default: micro x accumulation x processes)", Kinds: configs, set: numberBetween(1, 1<<30, func(j *Job) *int { return &j.DS.TrainBatch })},
		{Name: "micro-batch", Placeholder: "N", Help: "samples per process and micro batch (default: 1)", Kinds: configs, set: numberBetween(1, 1<<20, func(j *Job) *int { return &j.DS.MicroBatch })},
		{Name: "accumulation", Placeholder: "N", Help: "micro batches per step (default: 1)", Kinds: configs, set: numberBetween(1, 1<<20, func(j *Job) *int { return &j.DS.Accumulation })},
		{Name: "ds-auto", Flag: "auto", Help: "write \"auto\" for missing batch, precision and optimizer values, for the Trainer of Hugging Face (default: true)", Kinds: configs, kind: yesNo, set: yesNoValue(func(j *Job) *bool { return &j.DS.Auto })},
		{Name: "config-arg", Placeholder: "OPTION", Help: "the program's option for the configuration; none passes no configuration (default: --deepspeed with --auto, else --deepspeed --deepspeed_config)", Kinds: configs, set: matchingText(`none|--?[A-Za-z0-9][A-Za-z0-9_-]{0,60}`, "an option such as --deepspeed_config, or none", func(j *Job) *string { return &j.DS.Arg })},
	}
}

// matchingText accepts a text that matches the pattern. Such a text needs no quotes.
func matchingText(pattern, want string, field func(*Job) *string) func(*builder, Setting) {
	return func(b *builder, s Setting) {
		if !regexp.MustCompile(`^(?:` + pattern + `)$`).MatchString(s.text()) {
			b.refuse(s, "", "must be "+want)
			return
		}
		*field(b.job) = s.text()
	}
}

// wholePath is the hint about a path that begins with ~.
const wholePath = "write the whole path"

// onePath accepts any path, and the name of a program. Each rendering quotes it, so that no shell would
// replace a ~.
func onePath(field func(*Job) *string) func(*builder, Setting) {
	return func(b *builder, s Setting) {
		if !b.oneLine(s) {
			return
		}
		if strings.HasPrefix(s.text(), "~") {
			b.refuse(s, wholePath, "no shell replaces this ~")
			return
		}
		*field(b.job) = s.text()
	}
}

func oneOf(field func(*Job) *string, known ...string) func(*builder, Setting) {
	return func(b *builder, s Setting) {
		if !slices.Contains(known, s.text()) {
			b.refuse(s, nearest(s.text(), known), "must be one of "+strings.Join(known, ", "))
			return
		}
		*field(b.job) = s.text()
	}
}

func numberBetween(low, high int, field func(*Job) *int) func(*builder, Setting) {
	return func(b *builder, s Setting) {
		n, err := strconv.Atoi(s.text())
		if err != nil || n < low || n > high {
			b.refuse(s, "", fmt.Sprintf("must be a number from %d to %d", low, high))
			return
		}
		*field(b.job) = n
	}
}

func yesNoValue(field func(*Job) *bool) func(*builder, Setting) {
	return func(b *builder, s Setting) { *field(b.job) = s.text() == "true" }
}

func setPreset(b *builder, s Setting) {
	known := []string{"small", "medium", "large"}
	i := slices.Index(known, s.text())
	if i < 0 {
		b.refuse(s, nearest(s.text(), known), "must be one of "+strings.Join(known, ", "))
		return
	}
	nodes := []int{2, 4, 8}[i]
	b.job.Nodes, b.job.GPUs = Nodes{nodes, nodes}, 8
	b.said["nodes"], b.said["gpus"] = s, s
}

// maxNodes is far above the size of any cluster.
const maxNodes = 100_000

func setNodes(b *builder, s Setting) {
	low, high, elastic := strings.Cut(s.text(), ":")
	if !elastic {
		high = low
	}
	least, err1 := strconv.Atoi(low)
	most, err2 := strconv.Atoi(high)
	switch {
	case err1 != nil || err2 != nil || least < 1 || most > maxNodes:
		b.refuse(s, "write "+s.form("4")+", or "+s.form("2:4")+" for an elastic job", "must be N or MIN:MAX")
	case least > most:
		b.refuse(s, "write "+s.form(fmt.Sprintf("%d:%d", most, least)), "the minimum is larger than the maximum")
	default:
		b.job.Nodes = Nodes{least, most}
	}
}

// setGPUs accepts the number of GPUs, for Slurm also with their type: h100:8.
func setGPUs(b *builder, s Setting) {
	text := strings.TrimPrefix(s.text(), "gpu:") // as in --gres=gpu:h100:8
	kind, number, typed := strings.Cut(text, ":")
	if !typed {
		kind, number = "", text
	}
	n, err := strconv.Atoi(number)
	switch {
	case typed && !slices.Contains(bySlurm(), b.job.Kind):
		b.refuse(s, "write "+s.form(number), "only a job of Slurm names the type of its GPUs")
	case err != nil || n < 0 || n > 64 || typed && (n == 0 || !gpuType.MatchString(kind)):
		b.refuse(s, "", "must be a number from 0 to 64")
	default:
		b.job.GPUs, b.job.GPUType = n, kind
	}
}

// gpuType is a type of gres.conf.
var gpuType = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,60}$`)

// setSbatch accepts options of sbatch for which dsbuild has no key.
func setSbatch(b *builder, s Setting) {
	b.job.Sbatch = nil
	for _, w := range s.Words {
		option := Setting{Key: s.Key, Words: []Word{w}, At: s.At}
		name, value, _ := strings.Cut(w.Text, "=")
		own, has := KeyOfSbatch(strings.TrimPrefix(name, "--"))
		has = has && (value == "" || !own.IsBool()) // --exclusive=user is more than the key says
		switch {
		case !sbatchOption.MatchString(w.Text):
			b.refuse(option, "", "must be a long option with = before its value, such as --mail-type=END")
		case !has && strings.ContainsAny(value, ` #'"\`):
			b.job.Sbatch = append(b.job.Sbatch, name+`="`+strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(value)+`"`)
		case !has:
			b.job.Sbatch = append(b.job.Sbatch, w.Text)
		default:
			instead := "--" + own.FlagName()
			if s.At.Line > 0 {
				instead = own.Name + ":"
			}
			if value != "" && own.kind != variables {
				instead += " " + shellWord(value)
			}
			b.refuse(option, "use "+instead, "dsbuild sets that itself")
		}
	}
}

var sbatchOption = regexp.MustCompile(`^--[a-z][a-z0-9-]*(=[^\x00-\x1f]{1,500})?$`)

// setSetup accepts shell code, all lines together. It is the user's own, as in an inventory.
func setSetup(b *builder, s Setting) {
	b.job.Setup = nil
	for _, w := range s.Words {
		if b.oneLine(Setting{Key: s.Key, Words: []Word{w}, At: s.At}) {
			b.job.Setup = append(b.job.Setup, w.Text)
		}
	}
	_, err := syntax.NewParser().Parse(strings.NewReader(strings.Join(b.job.Setup, "\n")), "")
	var wrong syntax.ParseError
	if errors.As(err, &wrong) {
		at := s.At
		if line := int(wrong.Pos.Line()); line >= 1 && line <= len(s.Words) {
			at = s.Words[line-1].At
		}
		b.Add(at, "", "setup is not shell code: %s", wrong.Text)
	}
}

// setImage accepts the name of an image; for a Slurm job also a file.
func setImage(b *builder, s Setting) {
	form := `[A-Za-z0-9][A-Za-z0-9._/:@-]{0,300}`
	if slices.Contains(bySlurm(), b.job.Kind) {
		form = `[A-Za-z0-9./][A-Za-z0-9._/:@#+-]{0,300}` // a file, docker://NAME, REGISTRY#NAME
	}
	matchingText(form, "an image reference", func(j *Job) *string { return &j.Image })(b, s)
}

func setRDMA(b *builder, s Setting) {
	name, number, some := strings.Cut(s.text(), "=")
	n, err := strconv.Atoi(number)
	if !some {
		n, err = 1, nil
	}
	if !regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,60}[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`).MatchString(name) || err != nil || n < 1 || n > 64 {
		b.refuse(s, "'kubectl describe node' lists what nodes offer", "must be a resource such as rdma/hca, or rdma/hca=8")
		return
	}
	b.job.RDMA = Resource{name, n}
}

func setTolerations(b *builder, s Setting) {
	form := regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9./_-]{0,250}[A-Za-z0-9])?)(=([A-Za-z0-9]?[A-Za-z0-9._-]{0,62}))?(?::(NoSchedule|PreferNoSchedule|NoExecute))?$`)
	b.job.Tolerations = nil
	for _, w := range s.Words {
		m := form.FindStringSubmatch(w.Text)
		if m == nil {
			b.Add(w.At, "as 'kubectl describe node' writes taints: nvidia.com/gpu=present:NoSchedule", "%q is not a toleration: it must be KEY, KEY=VALUE or KEY=VALUE:EFFECT", w.Text)
			continue
		}
		b.job.Tolerations = append(b.job.Tolerations, Toleration{Key: m[1], Value: m[4], Effect: m[5], Equal: m[3] != ""})
	}
}

func setMounts(b *builder, s Setting) {
	form := regexp.MustCompile(`^([^:]+):(/[^:]*)(:ro|:rw)?$`)
	b.job.Mounts = nil
	for _, w := range s.Words {
		m := form.FindStringSubmatch(w.Text)
		if strings.HasPrefix(w.Text, "~") {
			b.Add(w.At, wholePath, "%q: no shell replaces this ~", w.Text)
			continue
		}
		if m == nil || strings.ContainsAny(w.Text, "\n\x00,") {
			b.Add(w.At, "write "+s.form("SOURCE:TARGET")+", or "+s.form("SOURCE:TARGET:ro"), "%q is not a mount: it must be a source and an absolute path in the container", w.Text)
			continue
		}
		b.job.Mounts = append(b.job.Mounts, Mount{m[1], m[2], m[3] == ":ro"})
	}
}

// setEnv accepts NAME=VALUE, or NAME alone. The last one of a name counts.
func setEnv(b *builder, s Setting) {
	name := regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	secret := regexp.MustCompile(`(?i)(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|KEY)$`)
	for _, w := range s.Words {
		v := Var{}
		var given bool
		v.Name, v.Value, given = strings.Cut(w.Text, "=")
		v.FromEnv = !given
		switch {
		case !name.MatchString(v.Name):
			b.Add(w.At, "write "+s.form("NAME=VALUE"), "%q cannot be the name of a variable", v.Name)
		case strings.ContainsAny(v.Value, "\n\r\x00"):
			b.Add(w.At, "", "the value of %s must be one line of text", v.Name)
		case variableOwner(v.Name) != "":
			b.Add(w.At, "leave it out: "+variableOwner(v.Name), "%s must not be in env", v.Name)
		case given && v.Value != "" && secret.MatchString(v.Name):
			b.Add(w.At, "give the name alone: the value is then taken from the environment that starts the job",
				"%s looks like a secret: every copy of the script would contain its value", v.Name)
		default:
			b.job.Env = slices.DeleteFunc(b.job.Env, func(old Var) bool { return old.Name == v.Name })
			b.job.Env = append(b.job.Env, v)
		}
	}
}

// variableOwner says who sets a reserved variable; "" for all others.
func variableOwner(name string) string {
	switch name {
	case "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK":
		return "the launcher sets it for each process"
	case "NODE_RANK", "NNODES", "NPROC_PER_NODE", "MIN_NNODES", "MAX_NNODES", "SLURM_PROCID", "SLURM_NODEID":
		return "it differs between nodes, or dsbuild computes it from --nodes and --gpus"
	case "MASTER_ADDR", "MASTER_PORT", "RDZV_ID":
		return "use --master, --port or --rdzv-id"
	case "NCCL_DEBUG":
		return "use --nccl-debug"
	case "JAX_PLATFORM_NAME":
		return "JAX reads JAX_PLATFORMS now; use --platforms"
	}
	return ""
}
