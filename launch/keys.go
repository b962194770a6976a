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

	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/remote"
)

// valueKind is the type of a key's value.
type valueKind int

const (
	text      valueKind = iota
	yesNo               // true or false
	list                // strings; the flag may repeat
	variables           // names and values
)

// String names the type in messages.
func (k valueKind) String() string {
	return [...]string{"a string", "true or false", "a list of strings", "a mapping of names to values"}[k]
}

// Key is a setting of a job, in a file or by a flag.
type Key struct {
	Name        string // in a file
	Flag        string // if it is not the name
	Placeholder string // of the flag's value; choices are separated by |
	Help        string
	Group       string     // heading in the help
	Kinds       []Launcher // launchers that use the key, or nil for all
	kind        valueKind
	set         func(*builder, Setting)
	sbatch      string // equivalent options of sbatch, without their dashes
}

// FlagName is the name of the flag.
func (k Key) FlagName() string { return cmp.Or(k.Flag, k.Name) }

// IsBool reports whether the value is true or false.
func (k Key) IsBool() bool { return k.kind == yesNo }

// Repeats reports whether the flag may repeat.
func (k Key) Repeats() bool { return k.kind == list || k.kind == variables }

// KeyOfSbatch returns the key that is equivalent to an sbatch option, a long or short name without dashes.
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

// Headings of keys in the help.
const (
	groupSize       = "Size"
	groupRendezvous = "Rendezvous"
	groupProgram    = "Program"
	GroupDeepSpeed  = "DeepSpeed"
	groupJAX        = "JAX"
	groupSlurm      = "Slurm"
	groupContainers = "Containers"
	groupKubernetes = "Kubernetes"
)

// Groups returns the headings of all keys, in order.
func Groups() []string {
	return slices.Compact(lists.Map(Keys(), func(k Key) string { return k.Group }))
}

// Keys returns all settings except the script and its arguments, group by group.
func Keys() []Key { //nolint:revive // a table, however long
	const names = `[A-Za-z0-9_.,-]{1,200}`
	const platforms = `(cuda|rocm|gpu|oneapi|tpu|cpu)` // those of jax/_src/xla_bridge.py; gpu is any of the first three
	k8s, configs := []Launcher{K8s}, takesConfig()
	return slices.Concat(
		inGroup(groupSize,
			Key{Name: "name", sbatch: "job-name J", Placeholder: "NAME", Help: "Job name (default: train)", set: matchingText(`[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?`, "letters, digits, '.', '_' and '-', 63 at most", func(j *Job) *string { return &j.Name })},
			Key{Name: "preset", Placeholder: "small|medium|large", Help: "2, 4 or 8 nodes with 8 GPUs each", set: setPreset},
			Key{Name: "nodes", sbatch: "nodes N", Placeholder: "N|MIN:MAX", Help: "Number of nodes, or the range of an elastic job (default: all nodes of the inventory, otherwise 1)", set: setNodes},
			Key{Name: "gpus", sbatch: "gres gpus G gpus-per-node gpus-per-task", Placeholder: "N", Help: "GPUs per node, for Slurm optionally with a type: h100:8; 0 runs the job on CPUs", set: setGPUs},
			Key{Name: "procs", sbatch: "ntasks n ntasks-per-node tasks-per-node", Placeholder: "N", Help: "Processes per node (default: one per GPU; JAX: 1)", set: numberBetween(1, 1024, func(j *Job) *int { return &j.Procs })},
			Key{Name: "cpus", sbatch: "cpus-per-task c", Placeholder: "N", Help: "CPUs per task (default: 4 per GPU plus 2; with --offload, 8 per process plus 2; without GPUs, 1 per process plus 2)", Kinds: []Launcher{Slurm, JAX, AIStation, K8s}, set: numberBetween(1, 4096, func(j *Job) *int { return &j.CPUs })},
		),
		inGroup(groupRendezvous,
			Key{Name: "master", Placeholder: "HOST", Help: "Host name or address of the first node, as the others reach it (default: from the inventory)", Kinds: byHand(), set: matchingText(`[A-Za-z0-9_:][A-Za-z0-9._:-]{0,252}`, "a host name or an address", func(j *Job) *string { return &j.Master })},
			Key{Name: "port", Placeholder: "PORT", Help: "Port on the first node (default: 29500; Slurm: derived from the job ID)", set: numberBetween(1024, 65535, func(j *Job) *int { return &j.Port })},
			Key{Name: "rdzv-id", Placeholder: "ID", Help: "Rendezvous ID, unique among running jobs (default: the job name; Slurm: the job ID)", Kinds: byTorchrun(), set: matchingText(`[A-Za-z0-9._-]{1,128}`, "letters, digits, '.', '_' and '-'", func(j *Job) *string { return &j.RdzvID })},
			Key{Name: "rendezvous", Placeholder: "static|c10d", Help: "Fixed ranks, or ranks that the nodes agree on (default: c10d for elastic jobs and workers, otherwise static)", Kinds: []Launcher{Slurm, Torchrun, Docker}, set: oneOf(func(j *Job) *string { return &j.Rendezvous })},
			Key{Name: "max-restarts", Placeholder: "N", Help: "Maximum number of restarts (default: 0; elastic jobs: 3)", Kinds: byTorchrun(), set: numberBetween(0, 1000, func(j *Job) *int { return &j.MaxRestarts })},
			Key{Name: "join-timeout", Placeholder: "SECONDS", Help: "Timeout for all nodes to join (default: torch's 900, c10d 600, JAX 300, Slurm workers 3600)", Kinds: []Launcher{Slurm, Torchrun, JAX, AIStation, K8s, Docker}, set: numberBetween(1, 7*24*3600, func(j *Job) *int { return &j.JoinTimeout })},
		),
		inGroup(groupProgram,
			Key{Name: "python", Placeholder: "PYTHON", Help: "Python interpreter on the nodes (default: from the inventory, otherwise from PATH)", set: onePath(func(j *Job) *string { return &j.Python })},
			Key{Name: "workdir", sbatch: "chdir D", Placeholder: "DIR", Help: "Working directory (default: where the script is started; over SSH, the home directory)", set: onePath(func(j *Job) *string { return &j.WorkDir })},
			Key{Name: "setup", Placeholder: "LINE", Help: "Shell line to run before the job, such as 'module load cuda'; repeatable", Kinds: []Launcher{Slurm, Torchrun, JAX, AIStation}, kind: list, set: setSetup},
			Key{Name: "env", sbatch: "export", Placeholder: "NAME[=VALUE]", Help: "Environment variable of the job; without =VALUE, from the environment that starts the job; repeatable", kind: variables, set: setEnv},
			Key{Name: "nccl-debug", Placeholder: "version|warn|info|trace", Help: "NCCL_DEBUG level (default: not set)", set: oneOf(func(j *Job) *string { return &j.NCCLDebug })},
		),
		inGroup(GroupDeepSpeed,
			Key{Name: "ds-config", Flag: "config", Placeholder: "FILE", Help: "Use and check this DeepSpeed configuration instead of generating one", Kinds: configs, set: onePath(func(j *Job) *string { return &j.DS.File })},
			Key{Name: "zero", Placeholder: "STAGE", Help: "Generate a DeepSpeed configuration with this ZeRO stage, 0 to 3 (default: 2 if other DeepSpeed settings are used)", Kinds: configs, set: numberBetween(0, 3, func(j *Job) *int { return &j.DS.Stage })},
			Key{Name: "offload", Placeholder: "none|cpu|nvme", Help: "Offload the optimizer and, with ZeRO-3, the parameters to CPU memory or NVMe (default: none)", Kinds: configs, set: oneOf(func(j *Job) *string { return &j.DS.Offload })},
			Key{Name: "nvme-path", Placeholder: "DIR", Help: "NVMe directory on the nodes, for --offload nvme", Kinds: configs, set: onePath(func(j *Job) *string { return &j.DS.NVMePath })},
			Key{Name: "precision", Placeholder: "bf16|fp16|fp32", Help: "Floating-point format; bf16 requires Ampere or newer (default: bf16)", Kinds: configs, set: oneOf(func(j *Job) *string { return &j.DS.Precision })},
			Key{Name: "train-batch", Placeholder: "N", Help: "Samples per step over all processes (default: micro-batch x accumulation x processes)", Kinds: configs, set: numberBetween(1, 1<<30, func(j *Job) *int { return &j.DS.TrainBatch })},
			Key{Name: "micro-batch", Placeholder: "N", Help: "Samples per process and micro-batch (default: 1)", Kinds: configs, set: numberBetween(1, 1<<20, func(j *Job) *int { return &j.DS.MicroBatch })},
			Key{Name: "accumulation", Placeholder: "N", Help: "Micro-batches per step (default: 1)", Kinds: configs, set: numberBetween(1, 1<<20, func(j *Job) *int { return &j.DS.Accumulation })},
			Key{Name: "ds-auto", Flag: "auto", Help: "Write \"auto\" for missing batch, precision and optimizer values, for the Hugging Face Trainer (default: true)", Kinds: configs, kind: yesNo, set: yesNoValue(func(j *Job) *bool { return &j.DS.Auto })},
			Key{Name: "config-arg", Placeholder: "OPTION", Help: "Program option that takes the configuration, or none (default: --deepspeed with --auto, otherwise --deepspeed --deepspeed_config)", Kinds: configs, set: matchingText(`none|--?[A-Za-z0-9][A-Za-z0-9_-]{0,60}`, "an option such as --deepspeed_config, or none", func(j *Job) *string { return &j.DS.Arg })},
		),
		inGroup(groupJAX,
			Key{Name: "jax-form", Flag: "form", Placeholder: "slurm|manual", Help: "Start through Slurm, or with a script on each host (default: slurm; with an inventory, manual)", Kinds: []Launcher{JAX}, set: oneOf(func(j *Job) *string { return &j.JAXForm })},
			Key{Name: "jax-platforms", Flag: "platforms", Placeholder: "LIST", Help: "JAX_PLATFORMS, separated by commas: cuda, rocm, gpu, oneapi, tpu, cpu (default: cuda; without GPUs, cpu)", Kinds: []Launcher{JAX}, set: matchingText(platforms+"(,"+platforms+")*", "cuda, rocm, gpu, oneapi, tpu or cpu, several joined by commas", func(j *Job) *string { return &j.JAXPlatforms })},
			Key{Name: "preallocate", Help: "Let XLA preallocate GPU memory", Kinds: []Launcher{JAX}, kind: yesNo, set: yesNoValue(func(j *Job) *bool { return &j.Preallocate })},
			Key{Name: "mem-fraction", Placeholder: "FRACTION", Help: "Fraction of GPU memory for XLA; reduce it if memory runs out (default: 0.9)", Kinds: []Launcher{JAX}, set: matchingText(`0?\.[0-9]{1,3}`, "a fraction such as 0.9", func(j *Job) *string { return &j.MemFraction })},
		),
		inGroup(groupSlurm,
			Key{Name: "slurm-form", Flag: "form", Placeholder: "job|workers", Help: "One job for all nodes, or a one-node job per node (default: job)", Kinds: []Launcher{Slurm}, set: oneOf(func(j *Job) *string { return &j.SlurmForm })},
			Key{Name: "partition", sbatch: "partition p", Placeholder: "NAME", Help: "Partition (default: the cluster's)", Kinds: bySlurm(), set: matchingText(names, "names, separated by commas", func(j *Job) *string { return &j.Partition })},
			Key{Name: "account", sbatch: "account A", Placeholder: "NAME", Help: "Account to charge (default: the user's)", Kinds: bySlurm(), set: matchingText(names, "a name", func(j *Job) *string { return &j.Account })},
			Key{Name: "qos", sbatch: "qos q", Placeholder: "NAME", Help: "Quality of service (default: the account's)", Kinds: bySlurm(), set: matchingText(names, "a name", func(j *Job) *string { return &j.QOS })},
			Key{Name: "time", sbatch: "time t", Placeholder: "TIME", Help: "Time limit: minutes, HH:MM:SS or D-HH:MM:SS (default: 20:00:00)", Kinds: bySlurm(), set: matchingText(`[0-9]+|[0-9]+:[0-9]{2}(:[0-9]{2})?|[0-9]+-[0-9]+(:[0-9]{2}){0,2}|infinite|UNLIMITED`, "minutes, HH:MM:SS or D-HH:MM:SS", func(j *Job) *string { return &j.Time })},
			Key{Name: "nodelist", sbatch: "nodelist w", Placeholder: "NODES", Help: "Nodes to use, in Slurm's syntax: gpu[01-04]", Kinds: bySlurm(), set: matchingText(`[A-Za-z0-9_.,\[\]-]+`, "a node expression such as gpu[01-04]", func(j *Job) *string { return &j.Nodelist })},
			Key{Name: "constraint", sbatch: "constraint C", Placeholder: "FEATURES", Help: "Required node features, in Slurm's syntax: h100&ib", Kinds: bySlurm(), set: matchingText(`[A-Za-z0-9_.,:&|*()\[\]=-]{1,200}`, "features joined by & or |, such as h100&ib", func(j *Job) *string { return &j.Constraint })},
			Key{Name: "mem", sbatch: "mem", Placeholder: "SIZE", Help: "Memory per node, such as 200G, or 0 for all memory (default: the cluster's)", Kinds: bySlurm(), set: matchingText(`[0-9]{1,9}[KMGT]?`, "a size such as 200G, or 0", func(j *Job) *string { return &j.Mem })},
			Key{Name: "exclusive", sbatch: "exclusive", Help: "Do not share the nodes with other jobs", Kinds: bySlurm(), kind: yesNo, set: yesNoValue(func(j *Job) *bool { return &j.Exclusive })},
			Key{Name: "requeue", sbatch: "requeue", Help: "Requeue the job after a preemption, a node failure or its time limit; the program must load its last checkpoint (default: the cluster's setting)", Kinds: bySlurm(), kind: yesNo, set: yesNoValue(func(j *Job) *bool { return &j.Requeue })},
			Key{Name: "log", sbatch: "output error e", Placeholder: "FILE", Help: "Output file, with Slurm's %x, %j and %N (default: %x-%j.out)", Kinds: bySlurm(), set: matchingText(`[A-Za-z0-9_./%+@=:,-]{1,500}`, "a path without spaces and quotes", func(j *Job) *string { return &j.Log })},
			Key{Name: "sbatch", Placeholder: "OPTION", Help: "Additional sbatch option, such as --sbatch=--mail-type=END; repeatable", Kinds: bySlurm(), kind: list, set: setSbatch},
		),
		inGroup(groupContainers,
			Key{Name: "container", Placeholder: "pyxis|apptainer", Help: "Run the program in --image, with srun --container-image or with Apptainer", Kinds: bySlurm(), set: oneOf(func(j *Job) *string { return &j.Container })},
			Key{Name: "image", Placeholder: "IMAGE", Help: "Container image", Kinds: inContainers(), set: setImage},
			Key{Name: "mount", Placeholder: "SOURCE:TARGET[:ro]", Help: "Directory or volume to mount into the containers; repeatable", Kinds: inContainers(), kind: list, set: setMounts},
			Key{Name: "shm-size", Placeholder: "SIZE", Help: "Shared memory per container, such as 16Gi (default: the host's; Kubernetes: half the memory)", Kinds: []Launcher{K8s, Docker}, set: matchingText(`[0-9]+(Mi|Gi)`, "a size such as 16Gi", func(j *Job) *string { return &j.ShmSize })},
		),
		inGroup(groupKubernetes,
			Key{Name: "k8s-form", Flag: "form", Placeholder: "pytorchjob|trainjob", Help: "Training Operator v1 or Kubeflow Trainer v2 (default: pytorchjob)", Kinds: []Launcher{K8s}, set: oneOf(func(j *Job) *string { return &j.K8sForm })},
			Key{Name: "namespace", Placeholder: "NAME", Help: "Namespace (default: kubectl's)", Kinds: []Launcher{K8s}, set: matchingText(`[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?`, "a DNS label", func(j *Job) *string { return &j.Namespace })},
			Key{Name: "queue", Placeholder: "NAME", Help: "Kueue queue, or Volcano queue with --gang volcano", Kinds: k8s, set: matchingText(`[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?`, "the name of a queue", func(j *Job) *string { return &j.Queue })},
			Key{Name: "gang", Placeholder: "kueue|volcano|coscheduling", Help: "Gang scheduler, to start all pods or none; volcano only for a PyTorchJob (default: kueue with --queue)", Kinds: k8s, set: oneOf(func(j *Job) *string { return &j.Gang })},
			Key{Name: "memory", Placeholder: "SIZE", Help: "Memory request and limit per pod, including shared memory, such as 256Gi (default: no limit)", Kinds: k8s, set: matchingText(`[1-9][0-9]{0,8}(Mi|Gi|Ti)`, "a size such as 256Gi", func(j *Job) *string { return &j.Memory })},
			Key{Name: "rdma", Placeholder: "RESOURCE[=N]", Help: "RDMA devices per pod, by the device plugin's resource name, such as rdma/hca=1; adds IPC_LOCK", Kinds: k8s, set: setRDMA},
			Key{Name: "toleration", Placeholder: "KEY[=VALUE][:EFFECT]", Help: "Node taint to tolerate, such as nvidia.com/gpu:NoSchedule; repeatable", Kinds: k8s, kind: list, set: setTolerations},
			Key{Name: "pull-secret", Placeholder: "NAME", Help: "Image pull secret", Kinds: k8s, set: matchingText(`[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?`, "the name of a secret", func(j *Job) *string { return &j.PullSecret })},
		),
	)
}

// inGroup sets the group of keys.
func inGroup(group string, keys ...Key) []Key {
	for i := range keys {
		keys[i].Group = group
	}
	return keys
}

// matchingText accepts a text that matches the pattern. Such a text needs no quotes.
func matchingText(pattern, want string, field func(*Job) *string) func(*builder, Setting) {
	return func(b *builder, s Setting) {
		if !regexp.MustCompile(`^(?:` + pattern + `)$`).MatchString(s.text()) {
			b.refuse(s, "", "want "+want)
			return
		}
		*field(b.job) = s.text()
	}
}

// tilde and wholePath are the error and the hint for a path that begins with ~.
const (
	tilde     = "~ is not expanded"
	wholePath = "write the full path"
)

// onePath accepts any path, and program names. Renderings quote it, so no shell expands a ~.
func onePath(field func(*Job) *string) func(*builder, Setting) {
	return func(b *builder, s Setting) {
		if !b.oneLine(s) {
			return
		}
		if strings.HasPrefix(s.text(), "~") {
			b.refuse(s, wholePath, tilde)
			return
		}
		*field(b.job) = s.text()
	}
}

// oneOf accepts the choices in the key's placeholder.
func oneOf(field func(*Job) *string) func(*builder, Setting) {
	return func(b *builder, s Setting) {
		if _, ok := b.choose(s); ok {
			*field(b.job) = s.text()
		}
	}
}

// choose returns the index of a value among the choices in its key's placeholder.
func (b *builder) choose(s Setting) (i int, ok bool) {
	known := strings.Split(keyNamed(s.Key).Placeholder, "|")
	i = slices.Index(known, s.text())
	if i < 0 {
		b.refuse(s, nearest(s.text(), known), "want "+lists.Or(known))
	}
	return i, i >= 0
}

func numberBetween(low, high int, field func(*Job) *int) func(*builder, Setting) {
	return func(b *builder, s Setting) {
		n, err := strconv.Atoi(s.text())
		if err != nil || n < low || n > high {
			b.refuse(s, "", fmt.Sprintf("want a number from %d to %d", low, high))
			return
		}
		*field(b.job) = n
	}
}

func yesNoValue(field func(*Job) *bool) func(*builder, Setting) {
	return func(b *builder, s Setting) { *field(b.job) = s.text() == "true" }
}

func setPreset(b *builder, s Setting) {
	i, ok := b.choose(s)
	if !ok {
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
		b.refuse(s, "use "+s.form("4")+", or "+s.form("2:4")+" for an elastic job", "want N or MIN:MAX")
	case least > most:
		b.refuse(s, "use "+s.form(fmt.Sprintf("%d:%d", most, least)), "minimum exceeds maximum")
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
		b.refuse(s, "use "+s.form(number), "GPU types are only supported for Slurm jobs")
	case err != nil || n < 0 || n > 64 || typed && (n == 0 || !gpuType.MatchString(kind)):
		b.refuse(s, "", "want a number from 0 to 64")
	default:
		b.job.GPUs, b.job.GPUType = n, kind
	}
}

// gpuType is a type of gres.conf.
var gpuType = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,60}$`)

// setSbatch accepts options of sbatch that have no key.
func setSbatch(b *builder, s Setting) {
	b.job.Sbatch = nil
	form := regexp.MustCompile(`^--[a-z][a-z0-9-]*(=[^\x00-\x1f]{1,500})?$`)
	seen := map[string]bool{}
	for _, w := range s.Words {
		option := Setting{Key: s.Key, Words: []Word{w}, At: s.At}
		name, value, _ := strings.Cut(w.Text, "=")
		own, has := KeyOfSbatch(strings.TrimPrefix(name, "--"))
		has = has && (value == "" || !own.IsBool()) // --exclusive=user is more than the key says
		switch {
		case !form.MatchString(w.Text):
			b.refuse(option, "", "want a long option with = before its value, such as --mail-type=END")
		case seen[name]:
			b.refuse(option, "", "this option is given twice")
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
				instead += " " + remote.Word(value)
			}
			b.refuse(option, "use "+instead, "this option is set by dsbuild")
		}
		seen[name] = true
	}
}

// setSetup accepts shell code, all lines together.
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
		b.Add(at, "", "invalid shell code: %s", wrong.Text)
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
		b.refuse(s, "to list the resources of the nodes, run: kubectl describe nodes", "want a resource such as rdma/hca or rdma/hca=8")
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
			b.refuse(Setting{Key: s.Key, Words: []Word{w}, At: s.At}, "use the syntax of kubectl describe nodes: nvidia.com/gpu=present:NoSchedule", "want KEY, KEY=VALUE or KEY=VALUE:EFFECT")
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
			b.refuse(Setting{Key: s.Key, Words: []Word{w}, At: s.At}, wholePath, tilde)
			continue
		}
		if m == nil || strings.ContainsAny(w.Text, "\n\x00,") {
			b.refuse(Setting{Key: s.Key, Words: []Word{w}, At: s.At}, "use "+s.form("SOURCE:TARGET")+" or "+s.form("SOURCE:TARGET:ro"), "want a source and an absolute path in the container")
			continue
		}
		b.job.Mounts = append(b.job.Mounts, Mount{m[1], m[2], m[3] == ":ro"})
	}
}

// setEnv accepts NAME=VALUE, or NAME alone. The last value of a name wins.
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
			b.Add(w.At, "use "+s.form("NAME=VALUE"), "invalid variable name %q", v.Name)
		case strings.ContainsAny(v.Value, "\n\r\x00"):
			b.Add(w.At, "", "the value of %s must be one line", v.Name)
		case variableOwner(v.Name) != "":
			b.Add(w.At, variableOwner(v.Name), "variable %s is reserved", v.Name)
		case given && v.Value != "" && secret.MatchString(v.Name):
			b.Add(w.At, "use "+s.form(v.Name)+" to pass the value from the environment that starts the job",
				"%s looks like a secret, and every copy of the script would contain its value", v.Name)
		default:
			b.job.Env = slices.DeleteFunc(b.job.Env, func(old Var) bool { return old.Name == v.Name })
			b.job.Env = append(b.job.Env, v)
		}
	}
}

// variableOwner returns the hint for a reserved variable, or "" for other variables.
func variableOwner(name string) string {
	switch name {
	case "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK":
		return "omit " + name + ", which the launcher sets for each process"
	case "NODE_RANK", "NNODES", "NPROC_PER_NODE", "MIN_NNODES", "MAX_NNODES", "SLURM_PROCID", "SLURM_NODEID":
		return "omit " + name + ": the value depends on the node, or follows from --nodes and --gpus"
	case "MASTER_ADDR", "MASTER_PORT", "RDZV_ID":
		return "use --master, --port or --rdzv-id"
	case "NCCL_DEBUG":
		return "use --nccl-debug"
	case "JAX_PLATFORM_NAME":
		return "use --platforms, which sets JAX_PLATFORMS"
	}
	return ""
}
