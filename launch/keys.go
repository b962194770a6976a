package launch

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// valueKind is what a key takes.
type valueKind int

const (
	text      valueKind = iota
	yesNo               // true or false
	list                // texts; by flags, the flag again and again
	variables           // names and values
)

// String is what messages call it.
func (k valueKind) String() string {
	return [...]string{"a text", "true or false", "a list of texts", "a mapping of names and values"}[k]
}

// Key is something that can be said about a job, in a file or by a flag.
type Key struct {
	Name        string // in a file
	Flag        string // "" where it is the name
	Placeholder string // of the flag's value
	Help        string
	Kinds       []Kind // that take notice of it; nil: all
	kind        valueKind
	set         func(*builder, Setting)
}

// FlagName is the name of the flag.
func (k Key) FlagName() string {
	if k.Flag != "" {
		return k.Flag
	}
	return k.Name
}

// YesNo reports whether the key is true or false.
func (k Key) YesNo() bool { return k.kind == yesNo }

// Repeats reports whether the flag may be given several times.
func (k Key) Repeats() bool { return k.kind == list || k.kind == variables }

// For reports whether a kind takes notice of the key.
func (k Key) For(kind Kind) bool { return k.Kinds == nil || slices.Contains(k.Kinds, kind) }

// TakesInventory reports whether a kind can be told its nodes: those whose nodes
// nobody else chooses.
func TakesInventory(kind Kind) bool { return slices.Contains(byHand(), kind) }

// The kinds that are alike for some keys.
func bySlurm() []Kind      { return []Kind{Slurm, JAX} }
func byTorchrun() []Kind   { return []Kind{Slurm, Torchrun, AIStation, K8s, Docker} }
func byHand() []Kind       { return []Kind{Torchrun, DeepSpeed, JAX, Docker} }
func inContainers() []Kind { return []Kind{K8s, Docker, AIStation, Slurm, JAX} }
func onNodes() []Kind      { return []Kind{Slurm, Torchrun, DeepSpeed, JAX, AIStation} }

// Keys are all there are beside the script and its arguments.
func Keys() []Key {
	return slices.Concat(sizeKeys(), meetingKeys(), slurmKeys(), programKeys(), containerKeys(), k8sKeys(), jaxKeys(), deepspeedKeys())
}

func sizeKeys() []Key {
	return []Key{
		{Name: "name", Placeholder: "NAME", Help: "what the job is called (default: train)", set: matching(`[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?`, "letters, digits, '.', '_' and '-', 63 at most", func(j *Job) *string { return &j.Name })},
		{Name: "preset", Placeholder: "SIZE", Help: "small (2 nodes x 8 GPUs), medium (4 x 8) or large (8 x 8)", set: setPreset},
		{Name: "nodes", Placeholder: "N|MIN:MAX", Help: "nodes, or the fewest and most of an elastic job (default: those of the inventory, or 1)", set: setNodes},
		{Name: "gpus", Placeholder: "N", Help: "GPUs of each node; 0 for none", set: number(0, 64, func(j *Job) *int { return &j.GPUs })},
		{Name: "procs", Placeholder: "N", Help: "processes of each node (default: one for each GPU; under JAX one)", set: number(1, 1024, func(j *Job) *int { return &j.Procs })},
		{Name: "cpus", Placeholder: "N", Help: "CPUs of each task (default: one for each process and two)", Kinds: []Kind{Slurm, JAX, AIStation, K8s}, set: number(1, 4096, func(j *Job) *int { return &j.CPUs })},
	}
}

func meetingKeys() []Key {
	return []Key{
		{Name: "master", Placeholder: "HOST", Help: "address of the first node, where all meet (default: the inventory's first)", Kinds: byHand(), set: matching(`[A-Za-z0-9_:][A-Za-z0-9._:-]{0,252}`, "a host name or an address", func(j *Job) *string { return &j.Master })},
		{Name: "port", Placeholder: "PORT", Help: "port of the first node (default: 29500; under Slurm from the job's number)", set: number(1024, 65535, func(j *Job) *int { return &j.Port })},
		{Name: "rdzv-id", Placeholder: "ID", Help: "name of the rendezvous, unique among running jobs (default: the job's name; under Slurm its number)", Kinds: byTorchrun(), set: matching(`[A-Za-z0-9._-]{1,128}`, "letters, digits, '.', '_' and '-'", func(j *Job) *string { return &j.RdzvID })},
		{Name: "rendezvous", Placeholder: "HOW", Help: "static (ranks are given) or c10d (ranks are agreed on; the only one for MIN:MAX)", Kinds: []Kind{Slurm, Torchrun, Docker}, set: oneOf(func(j *Job) *string { return &j.Rendezvous }, "static", "c10d")},
		{Name: "max-restarts", Placeholder: "N", Help: "how often the processes are started again (default: 0; 3 for MIN:MAX)", Kinds: byTorchrun(), set: number(0, 1000, func(j *Job) *int { return &j.MaxRestarts })},
		{Name: "join-timeout", Placeholder: "SECONDS", Help: "how long nodes wait for each other at the start (default: torch's 900, by c10d 600; JAX's 300; 3600 for --form workers)", Kinds: []Kind{Slurm, Torchrun, JAX, AIStation, K8s, Docker}, set: number(1, 7*24*3600, func(j *Job) *int { return &j.JoinTimeout })},
	}
}

func slurmKeys() []Key {
	const words = `[A-Za-z0-9_.,-]{1,200}`
	return []Key{
		{Name: "slurm-form", Flag: "form", Placeholder: "FORM", Help: "job (one job of all nodes) or workers (one-node jobs that meet) (default: job)", Kinds: []Kind{Slurm}, set: oneOf(func(j *Job) *string { return &j.SlurmForm }, "job", "workers")},
		{Name: "time", Placeholder: "TIME", Help: "longest run: minutes, HH:MM:SS or D-HH:MM:SS (default: 20:00:00)", Kinds: bySlurm(), set: matching(`[0-9]+|[0-9]+:[0-9]{2}(:[0-9]{2})?|[0-9]+-[0-9]+(:[0-9]{2}){0,2}|infinite|UNLIMITED`, "minutes, HH:MM:SS or D-HH:MM:SS", func(j *Job) *string { return &j.Time })},
		{Name: "partition", Placeholder: "NAME", Help: "partition of Slurm (default: the cluster's)", Kinds: bySlurm(), set: matching(words, "names, separated by commas", func(j *Job) *string { return &j.Partition })},
		{Name: "account", Placeholder: "NAME", Help: "account that is charged (default: the user's)", Kinds: bySlurm(), set: matching(words, "a name", func(j *Job) *string { return &j.Account })},
		{Name: "qos", Placeholder: "NAME", Help: "quality of service (default: the account's)", Kinds: bySlurm(), set: matching(words, "a name", func(j *Job) *string { return &j.QOS })},
		{Name: "nodelist", Placeholder: "NODES", Help: "these nodes, as Slurm writes them: gpu[01-04]", Kinds: bySlurm(), set: matching(`[A-Za-z0-9_.,\[\]-]+`, "a node expression such as gpu[01-04]", func(j *Job) *string { return &j.Nodelist })},
		{Name: "requeue", Help: "put the job back into the queue when it is preempted or loses a node; the program must load its last checkpoint (default: as the cluster does)", Kinds: bySlurm(), kind: yesNo, set: boolean(func(j *Job) *bool { return &j.Requeue })},
		{Name: "container", Placeholder: "HOW", Help: "run the program in --image on the nodes: pyxis (srun --container-image) or apptainer", Kinds: bySlurm(), set: oneOf(func(j *Job) *string { return &j.Container }, "pyxis", "apptainer")},
		{Name: "log", Placeholder: "FILE", Help: "file of the output, with Slurm's %x, %j, %N (default: %x-%j.out)", Kinds: bySlurm(), set: matching(`[A-Za-z0-9_./%+@=:,-]{1,500}`, "a path without spaces and quotes", func(j *Job) *string { return &j.Log })},
	}
}

func programKeys() []Key {
	return []Key{
		{Name: "env", Placeholder: "NAME[=VALUE]", Help: "a variable of the job; without a value it is taken from the environment that starts it", kind: variables, set: setEnv},
		{Name: "nccl-debug", Placeholder: "LEVEL", Help: "have NCCL talk: info, warn, trace, version (default: silent)", set: oneOf(func(j *Job) *string { return &j.NCCLDebug }, "version", "warn", "info", "trace")},
		{Name: "setup", Placeholder: "LINE", Help: "shell line run before the job (module load …, source …/activate)", Kinds: onNodes(), set: setSetup},
		{Name: "workdir", Placeholder: "DIR", Help: "folder that the script runs in (default: where it is started)", set: free(func(j *Job) *string { return &j.WorkDir })},
		{Name: "python", Placeholder: "PYTHON", Help: "interpreter on the nodes (default: the inventory's, or what is on PATH)", set: free(func(j *Job) *string { return &j.Python })},
	}
}

func containerKeys() []Key {
	return []Key{
		{Name: "image", Placeholder: "IMAGE", Help: "image of the containers", Kinds: inContainers(), set: setImage},
		{Name: "mount", Placeholder: "SOURCE:TARGET[:ro]", Help: "a folder that the containers see", Kinds: inContainers(), kind: list, set: setMounts},
		{Name: "shm-size", Placeholder: "SIZE", Help: "shared memory of a container, as in 16Gi (default: that of the host; Kubernetes: half the memory)", Kinds: []Kind{K8s, Docker}, set: matching(`[0-9]+(Mi|Gi)`, "a size such as 16Gi", func(j *Job) *string { return &j.ShmSize })},
	}
}

func k8sKeys() []Key {
	k8s := []Kind{K8s}
	return []Key{
		{Name: "memory", Placeholder: "SIZE", Help: "memory of each pod, as in 256Gi: asked for, and its limit; shared memory counts (default: no limit)", Kinds: k8s, set: matching(`[1-9][0-9]{0,8}(Mi|Gi|Ti)`, "a size such as 256Gi", func(j *Job) *string { return &j.Memory })},
		{Name: "rdma", Placeholder: "RESOURCE[=N]", Help: "network cards of each pod by the name that the cluster's device plugin gives them, as in rdma/hca=1; adds IPC_LOCK", Kinds: k8s, set: setRDMA},
		{Name: "toleration", Placeholder: "KEY[=VALUE][:EFFECT]", Help: "a taint of nodes that pods may run on, as in nvidia.com/gpu:NoSchedule", Kinds: k8s, kind: list, set: setTolerations},
		{Name: "pull-secret", Placeholder: "NAME", Help: "secret by which nodes pull the image", Kinds: k8s, set: matching(`[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?`, "the name of a secret", func(j *Job) *string { return &j.PullSecret })},
		{Name: "gang", Placeholder: "BY", Help: "start all pods or none, by: kueue, volcano (pytorchjob) or coscheduling (default: kueue with --queue)", Kinds: k8s, set: oneOf(func(j *Job) *string { return &j.Gang }, "kueue", "volcano", "coscheduling")},
		{Name: "queue", Placeholder: "NAME", Help: "queue of Kueue, or of Volcano with --gang volcano", Kinds: k8s, set: matching(`[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?`, "the name of a queue", func(j *Job) *string { return &j.Queue })},
		{Name: "namespace", Placeholder: "NAME", Help: "namespace of Kubernetes (default: that of kubectl)", Kinds: []Kind{K8s}, set: matching(`[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?`, "a DNS label", func(j *Job) *string { return &j.Namespace })},
		{Name: "k8s-form", Flag: "form", Placeholder: "FORM", Help: "pytorchjob (Training Operator v1) or trainjob (Kubeflow Trainer v2) (default: pytorchjob)", Kinds: []Kind{K8s}, set: oneOf(func(j *Job) *string { return &j.K8sForm }, "pytorchjob", "trainjob")},
	}
}

func jaxKeys() []Key {
	return []Key{
		{Name: "jax-form", Flag: "form", Placeholder: "FORM", Help: "slurm or manual (a script on each host) (default: slurm; manual with an inventory)", Kinds: []Kind{JAX}, set: oneOf(func(j *Job) *string { return &j.JAXForm }, "slurm", "manual")},
		{Name: "jax-platforms", Flag: "platforms", Placeholder: "LIST", Help: "JAX_PLATFORMS: cuda, rocm, tpu, cpu (default: cuda; cpu without GPUs)", Kinds: []Kind{JAX}, set: matching(`[a-z]+(,[a-z]+)*`, "names, separated by commas", func(j *Job) *string { return &j.JAXPlatforms })},
		{Name: "preallocate", Help: "let XLA take its GPU memory at the start (default: false)", Kinds: []Kind{JAX}, kind: yesNo, set: boolean(func(j *Job) *bool { return &j.Preallocate })},
		{Name: "mem-fraction", Placeholder: "SHARE", Help: "the share of GPU memory that XLA may take (default: 0.9; 0.8 where it runs out)", Kinds: []Kind{JAX}, set: matching(`0?\.[0-9]{1,3}`, "a share such as 0.9", func(j *Job) *string { return &j.MemFraction })},
	}
}

func deepspeedKeys() []Key {
	ds, configs := []Kind{DeepSpeed}, takesConfig()
	return []Key{
		{Name: "ds-form", Flag: "form", Placeholder: "FORM", Help: "pdsh (one launcher, which logs in on the nodes) or nodes (one on each node) (default: pdsh; nodes with --submit)", Kinds: ds, set: oneOf(func(j *Job) *string { return &j.DSForm }, "pdsh", "nodes")},
		{Name: "ds-config", Flag: "config", Placeholder: "FILE", Help: "check this DeepSpeed configuration instead of rendering one", Kinds: configs, set: free(func(j *Job) *string { return &j.DS.File })},
		{Name: "zero", Placeholder: "STAGE", Help: "render a DeepSpeed configuration with this ZeRO stage: 0 to 3 (default: 2)", Kinds: configs, set: number(0, 3, func(j *Job) *int { return &j.DS.Stage })},
		{Name: "offload", Placeholder: "WHERE", Help: "keep the optimizer (with ZeRO-3 the parameters too) in: none, cpu, nvme (default: none)", Kinds: configs, set: oneOf(func(j *Job) *string { return &j.DS.Offload }, "none", "cpu", "nvme")},
		{Name: "nvme-path", Placeholder: "DIR", Help: "folder on the nodes' NVMe disks, for --offload nvme", Kinds: configs, set: free(func(j *Job) *string { return &j.DS.NVMePath })},
		{Name: "precision", Placeholder: "HOW", Help: "bf16 (Ampere and newer), fp16 or fp32 (default: bf16)", Kinds: configs, set: oneOf(func(j *Job) *string { return &j.DS.Precision }, "bf16", "fp16", "fp32")},
		{Name: "train-batch", Placeholder: "N", Help: "samples of a step over all processes (default: micro x accumulation x processes)", Kinds: configs, set: number(1, 1<<30, func(j *Job) *int { return &j.DS.TrainBatch })},
		{Name: "micro-batch", Placeholder: "N", Help: "samples that a process takes at once (default: 1)", Kinds: configs, set: number(1, 1<<20, func(j *Job) *int { return &j.DS.MicroBatch })},
		{Name: "accumulation", Placeholder: "N", Help: "micro batches of a step (default: 1)", Kinds: configs, set: number(1, 1<<20, func(j *Job) *int { return &j.DS.Accumulation })},
		{Name: "ds-auto", Flag: "auto", Help: "leave to the Trainer of Hugging Face what is not said of batch, precision and optimizer: \"auto\" (default: true, but for launch deepspeed)", Kinds: configs, kind: yesNo, set: boolean(func(j *Job) *bool { return &j.DS.Auto })},
		{Name: "config-arg", Placeholder: "OPTION", Help: "the program's option for the configuration, or none: it is not passed on (default: --deepspeed with --auto, else --deepspeed --deepspeed_config)", Kinds: configs, set: matching(`none|--?[A-Za-z0-9][A-Za-z0-9_-]{0,60}`, "an option such as --deepspeed_config, or none", func(j *Job) *string { return &j.DS.Arg })},
		{Name: "include", Placeholder: "NODES", Help: "only these of the hostfile: gpu01@gpu02:0,1", Kinds: ds, set: matching(filterWords, "NODE[:SLOT,…] joined by @", func(j *Job) *string { return &j.Include })},
		{Name: "exclude", Placeholder: "NODES", Help: "all of the hostfile but these: gpu02:3", Kinds: ds, set: matching(filterWords, "NODE[:SLOT,…] joined by @", func(j *Job) *string { return &j.Exclude })},
	}
}

const filterWords = `[A-Za-z0-9_.-]+(:[0-9]+(,[0-9]+)*)?(@[A-Za-z0-9_.-]+(:[0-9]+(,[0-9]+)*)?)*`

// matching takes a text of a form that needs quotes nowhere.
func matching(pattern, want string, field func(*Job) *string) func(*builder, Setting) {
	return func(b *builder, s Setting) {
		if !regexp.MustCompile(`^(?:` + pattern + `)$`).MatchString(s.text()) {
			b.wrong(s, "", "%s is %q: it must be %s", s.Key, s.text(), want)
			return
		}
		*field(b.job) = s.text()
	}
}

// free takes any line of text: it is quoted wherever it is put.
func free(field func(*Job) *string) func(*builder, Setting) {
	return func(b *builder, s Setting) {
		if !b.oneLine(s) {
			return
		}
		*field(b.job) = s.text()
	}
}

func oneOf(field func(*Job) *string, known ...string) func(*builder, Setting) {
	return func(b *builder, s Setting) {
		if !slices.Contains(known, s.text()) {
			b.wrong(s, nearest(s.text(), known), "%s is %q: it must be one of %s", s.Key, s.text(), strings.Join(known, ", "))
			return
		}
		*field(b.job) = s.text()
	}
}

func number(low, high int, field func(*Job) *int) func(*builder, Setting) {
	return func(b *builder, s Setting) {
		n, err := strconv.Atoi(s.text())
		if err != nil || n < low || n > high {
			b.wrong(s, "", "%s is %q: it must be a number from %d to %d", s.Key, s.text(), low, high)
			return
		}
		*field(b.job) = n
	}
}

func boolean(field func(*Job) *bool) func(*builder, Setting) {
	return func(b *builder, s Setting) { *field(b.job) = s.text() == "true" }
}

func setPreset(b *builder, s Setting) {
	var known []string
	for _, p := range Presets() {
		known = append(known, p.Name)
		if p.Name == s.text() {
			b.job.Nodes, b.job.GPUs = Nodes{p.Nodes, p.Nodes}, p.GPUs
			b.said["nodes"], b.said["gpus"] = s, s
			return
		}
	}
	b.wrong(s, nearest(s.text(), known), "no preset is called %q; there are %s", s.text(), strings.Join(known, ", "))
}

// maxNodes bounds a job far above what there is.
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
		b.wrong(s, "as in 4, or 2:4 for an elastic job", "nodes is %q: it must be N or MIN:MAX", s.text())
	case least > most:
		b.wrong(s, fmt.Sprintf("as in %d:%d", most, least), "nodes is %q: the fewest are more than the most", s.text())
	default:
		b.job.Nodes = Nodes{least, most}
	}
}

// setSetup takes shell code as it is: it is the user's own, as in an inventory.
func setSetup(b *builder, s Setting) {
	if b.oneLine(s) {
		b.job.Setup = s.text()
	}
}

// setImage takes the name of an image, or where the job runs by Slurm a file too.
func setImage(b *builder, s Setting) {
	form := `[A-Za-z0-9][A-Za-z0-9._/:@-]{0,300}`
	if slices.Contains(bySlurm(), b.job.Kind) {
		form = `[A-Za-z0-9./][A-Za-z0-9._/:@#+-]{0,300}` // a file, docker://NAME, REGISTRY#NAME
	}
	matching(form, "an image reference", func(j *Job) *string { return &j.Image })(b, s)
}

func setRDMA(b *builder, s Setting) {
	name, number, some := strings.Cut(s.text(), "=")
	n, err := strconv.Atoi(number)
	if !some {
		n, err = 1, nil
	}
	if !regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,60}[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`).MatchString(name) || err != nil || n < 1 || n > 64 {
		b.wrong(s, "'kubectl describe node' lists what nodes offer", "rdma is %q: it must be a resource such as rdma/hca, or rdma/hca=8", s.text())
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
			b.wrongAt(w.At, "as 'kubectl describe node' writes taints: nvidia.com/gpu=present:NoSchedule", "%q is no toleration: it must be KEY, KEY=VALUE or KEY=VALUE:EFFECT", w.Text)
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
		if m == nil || strings.ContainsAny(w.Text, "\n\x00,") {
			b.wrongAt(w.At, "SOURCE:TARGET, or SOURCE:TARGET:ro", "%q is no mount: it must be a source and an absolute path in the container", w.Text)
			continue
		}
		b.job.Mounts = append(b.job.Mounts, Mount{m[1], m[2], m[3] == ":ro"})
	}
}

// setEnv takes NAME=VALUE, or NAME alone: what is said later replaces what was
// said of the same name.
func setEnv(b *builder, s Setting) {
	name := regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	secret := regexp.MustCompile(`(?i)(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|KEY)$`)
	for _, w := range s.Words {
		v := Var{}
		var given bool
		v.Name, v.Value, given = strings.Cut(w.Text, "=")
		v.Taken = !given
		switch {
		case !name.MatchString(v.Name):
			b.wrongAt(w.At, "NAME=VALUE", "%q cannot be the name of a variable", v.Name)
		case strings.ContainsAny(v.Value, "\n\r\x00"):
			b.wrongAt(w.At, "", "the value of %s must be one line of text", v.Name)
		case owner(v.Name) != "":
			b.wrongAt(w.At, "leave it out: "+owner(v.Name), "%s is not for the environment", v.Name)
		case given && v.Value != "" && secret.MatchString(v.Name):
			b.wrongAt(w.At, "give the name alone: the value is then taken from the environment that starts the job",
				"%s looks like a secret: its value would be in every copy of the script", v.Name)
		default:
			b.job.Env = slices.DeleteFunc(b.job.Env, func(old Var) bool { return old.Name == v.Name })
			b.job.Env = append(b.job.Env, v)
		}
	}
}

// owner says who sets a variable that a job must not bring along.
func owner(name string) string {
	switch name {
	case "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK":
		return "the launcher sets it for each process"
	case "NODE_RANK", "NNODES", "NPROC_PER_NODE", "MIN_NNODES", "MAX_NNODES", "SLURM_PROCID", "SLURM_NODEID":
		return "it differs from node to node or follows from --nodes and --gpus"
	case "MASTER_ADDR", "MASTER_PORT", "RDZV_ID":
		return "say --master, --port or --rdzv-id"
	case "NCCL_DEBUG":
		return "say --nccl-debug"
	case "JAX_PLATFORM_NAME":
		return "JAX reads JAX_PLATFORMS today; say --platforms"
	}
	return ""
}
