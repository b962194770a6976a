package launch

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/lineerr"
	"github.com/dsbuild/dsbuild/inventory"
)

// builder makes a job from settings and collects the errors in them.
type builder struct {
	lineerr.List
	job  *Job
	said map[string]Setting // the last setting of each key
	// refused are the keys with invalid values. Consequences of such a value are not reported.
	refused map[string]bool
}

// addProblem records that a value conflicts with others, unless the value itself is invalid.
func (b *builder) addProblem(s Setting, hint, format string, args ...any) {
	if b.refused[s.Key] {
		return
	}
	at := s.At
	if len(s.Words) > 0 {
		at = s.Words[0].At
	}
	message := fmt.Sprintf(format, args...)
	if at.Line == 0 && strings.HasPrefix(message, at.File+" ") {
		at = Position{} // the message names the flag
	}
	b.Add(at, hint, "%s", message)
}

// refuse records an invalid value: `invalid value "-1" for --gpus: want …`, in a file with its position and key.
func (b *builder) refuse(s Setting, hint, why string) {
	at := s.At
	if len(s.Words) > 0 {
		at = s.Words[0].At
	}
	if at.Line == 0 {
		at = Position{}
	}
	b.Add(at, hint, "invalid value %q for %s: %s", lineerr.Clip(s.text()), s.name(), why)
}

// name returns a setting's name as the user wrote it: a flag, or a key of a file.
func (s Setting) name() string {
	if s.At.Line > 0 {
		return s.Key
	}
	return s.At.File
}

// form returns a value as the user writes it: after its flag, or alone in a file.
func (s Setting) form(value string) string {
	if s.At.Line > 0 {
		return value
	}
	return s.At.File + " " + value
}

func (b *builder) oneLine(s Setting) bool {
	if t := s.text(); strings.TrimSpace(t) == "" || strings.ContainsAny(t, "\n\r\x00") || len(t) > 4000 {
		b.refuse(s, "", "want one line")
		return false
	}
	return true
}

func nearest(word string, known []string) string {
	if near := lineerr.Nearest(word, known); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return ""
}

// Request holds the settings and surroundings of a job.
type Request struct {
	Kind     Launcher
	File     Settings // of the job file, if there is one
	Flags    Settings // override the file
	Command  []string // script and arguments; override the file's
	Hosts    []inventory.Host
	ReadFile func(name string) ([]byte, error) // for a DeepSpeed configuration
	// Ops are the ops in the wheel on the nodes. It is nil if they are unknown.
	Ops []string
}

// New returns the job of a request. If settings are invalid, the error is an *Error that
// lists all of them.
func New(r Request) (*Job, error) {
	b := &builder{
		List:    lineerr.List{Lines: r.File.lines},
		job:     &Job{Kind: r.Kind},
		said:    map[string]Setting{},
		refused: map[string]bool{},
	}
	for _, source := range []Settings{r.File, r.Flags} {
		b.applySettings(source)
	}
	b.takeCommand(r.Command)
	b.takeHosts(r.Hosts)
	b.fillDefaults()
	b.checkAll()
	if TakesConfig(r.Kind) {
		b.prepareConfig(r)
	}
	if err := b.Err(); err != nil {
		return nil, err
	}
	return b.job, nil
}

// applySettings applies the settings of one source. A preset is applied first: nodes
// and GPUs of the same source override it.
func (b *builder) applySettings(s Settings) {
	for _, preset := range []bool{true, false} {
		for _, said := range s.All {
			k := keyNamed(said.Key)
			if (said.Key == "preset") != preset || k.set == nil || !k.For(b.job.Kind) {
				continue
			}
			b.said[said.Key] = said
			found, before := len(b.Problems), b.refused[said.Key]
			b.refused[said.Key] = false
			k.set(b, said)
			b.refused[said.Key] = before || len(b.Problems) > found
		}
	}
	for _, said := range s.All {
		switch said.Key {
		case "script", "module":
			b.said[said.Key], b.job.Script, b.job.Module = said, said.text(), said.Key == "module"
		case "args":
			b.said[said.Key], b.job.Args = said, said.texts()
		}
	}
}

func (b *builder) isSet(key string) bool {
	_, ok := b.said[key]
	return ok
}

// takeHosts chooses the job's nodes from the inventory.
func (b *builder) takeHosts(all []inventory.Host) {
	j := b.job
	seen := map[string]string{}
	for _, h := range all {
		if first, twice := seen[h.Node]; twice {
			b.Add(Position{File: h.Position}, "select one with --limit", "%s and %s are the same node", first, h.Name)
		}
		seen[h.Node] = h.Name
	}
	j.Hosts, j.HostsKnown = all, len(all)
	if len(all) == 0 {
		return
	}
	switch n, said := j.Nodes.Max, b.isSet("nodes"); {
	case !said || n == 0:
		j.Nodes = Nodes{len(all), len(all)}
	case n > len(all):
		b.addProblem(b.said["nodes"], "", "the job needs %d nodes, but the inventory has %d", n, len(all))
	default:
		j.Hosts = all[:n]
	}
	j.Master = cmp.Or(j.Master, j.Hosts[0].Address)
}

// fillDefaults sets the default of each missing setting.
func (b *builder) fillDefaults() {
	j := b.job
	or := func(field *string, value string) {
		*field = cmp.Or(*field, value)
	}
	or(&j.Name, "train")
	if j.Nodes.Max == 0 {
		j.Nodes = Nodes{1, 1}
	}
	b.decideProcesses()
	or(&j.SlurmForm, "job")
	or(&j.K8sForm, "pytorchjob")
	or(&j.JAXForm, map[bool]string{true: "manual", false: "slurm"}[len(j.Hosts) > 0])
	meets := j.Nodes.Elastic() || j.hasWorkers() || j.Kind == AIStation
	or(&j.Rendezvous, map[bool]string{true: "c10d", false: "static"}[meets])
	if j.Nodes.Elastic() && !b.isSet("max-restarts") {
		j.MaxRestarts = usualRestarts
	}
	if j.hasWorkers() && j.JoinTimeout == 0 {
		j.JoinTimeout = 3600
	}
	or(&j.Time, "20:00:00")
	or(&j.Log, "%x-%j.out")
	or(&j.Master, "localhost")
	if j.Port == 0 && !j.BySlurm() {
		j.Port = 29500
	}
	if j.RdzvID == "" && j.Kind != Slurm {
		j.RdzvID = j.Name
	}
	if j.Queue != "" {
		or(&j.Gang, "kueue")
	}
	or(&j.MemFraction, "0.9")
	or(&j.JAXPlatforms, map[bool]string{true: "cuda", false: "cpu"}[j.GPUs > 0])
}

// usualRestarts is the default number of restarts of an elastic job. Each lost node costs
// one.
const usualRestarts = 3

// decideProcesses sets the number of processes on a node, and their CPUs.
func (b *builder) decideProcesses() {
	j := b.job
	j.ProcsSet = b.isSet("procs")
	j.Slots = len(j.Hosts) > 0 && !b.isSet("gpus") && (!j.ProcsSet || j.Kind == JAX) &&
		!slices.ContainsFunc(j.Hosts, func(h inventory.Host) bool { return h.Slots == 0 })
	switch {
	case j.Slots:
		j.GPUs = slices.MaxFunc(j.Hosts, func(a, b inventory.Host) int { return a.Slots - b.Slots }).Slots
	case !b.isSet("gpus") && (!j.ProcsSet || j.Kind == JAX):
		// A usual server has eight, the guides' script four, and a container one.
		j.GPUs = cmp.Or(map[Launcher]int{Torchrun: 4, AIStation: 1}[j.Kind], 8)
	}
	switch {
	case j.Procs > 0:
	case j.Kind == JAX:
		j.Procs = 1
	default:
		j.Procs = max(j.GPUs, 1)
	}
	j.GPUsKnown = b.isSet("gpus") || j.Slots || j.Procs > 1
	if j.CPUs > 0 {
		return
	}
	switch {
	case j.offloads() && j.Kind != JAX:
		j.CPUs = 8*j.Procs + 2
	case j.Kind == JAX && j.GPUs > 0: // a task may have several GPUs
		j.CPUs = 4*max(j.GPUs/j.Procs, 1) + 2
	case j.Kind == JAX:
		j.CPUs = 3
	case j.GPUs > 0:
		j.CPUs = 4*j.GPUs + 2
	default:
		j.CPUs = j.Procs + 2
	}
}

// offloads reports whether the optimizer runs on the CPU, where one core per process would be many
// times slower.
func (j *Job) offloads() bool { return j.DS.Offload == "cpu" || j.DS.Offload == "nvme" }

// onROCm reports whether JAX runs on AMD's GPUs.
func (j *Job) onROCm() bool { return strings.HasPrefix(j.JAXPlatforms, "rocm") }

// BySlurm reports whether Slurm starts the job.
func (j *Job) BySlurm() bool { return j.Kind == Slurm || j.Kind == JAX && j.JAXForm == "slurm" }

// hasWorkers reports whether the job is a group of one-node Slurm jobs.
func (j *Job) hasWorkers() bool { return j.Kind == Slurm && j.SlurmForm == "workers" }

// workers is the setting that makes a job a group of one-node Slurm jobs, as the user wrote it.
func (b *builder) workers() string {
	s := b.said["slurm-form"]
	if s.At.Line > 0 {
		return "slurm-form: workers"
	}
	return s.form("workers")
}

// checkAll finds settings that contradict each other.
func (b *builder) checkAll() {
	j, nodes := b.job, b.said["nodes"]
	switch {
	case !j.Nodes.Elastic():
	case j.Rendezvous == "static":
		s := b.said["rendezvous"]
		b.addProblem(s, "omit "+s.name(), "elastic jobs (MIN:MAX) require c10d: they have no fixed ranks")
	case j.Kind == JAX:
		b.addProblem(nodes, "", "JAX requires a fixed number of nodes, not MIN:MAX")
	case j.Kind == K8s && j.K8sForm == "trainjob":
		b.addProblem(nodes, "use --form pytorchjob", "a TrainJob requires a fixed number of nodes, not MIN:MAX")
	}
	if j.Nodes.Elastic() && j.MaxRestarts == 0 {
		b.addProblem(b.said["max-restarts"], "use at least 1; each lost node takes one restart",
			"without restarts, an elastic job does not survive the loss of a node")
	}
	if j.hasWorkers() && j.Rendezvous == "static" {
		s := b.said["rendezvous"]
		b.addProblem(s, "omit "+s.name(), "%s requires c10d: one-node jobs have no fixed ranks", b.workers())
	}
	if j.hasWorkers() && j.Nodes.Max < 2 {
		s := b.said["slurm-form"]
		b.addProblem(s, "omit "+s.name()+" for one node", "%s requires at least two nodes", b.workers())
	}
	if j.Kind == JAX && j.GPUs%j.Procs != 0 && j.GPUs > 0 {
		b.addProblem(b.said["procs"], "", "cannot divide %d GPUs evenly among %d processes", j.GPUs, j.Procs)
	}
	if j.Kind != JAX && j.Procs > j.GPUs && j.GPUs > 0 {
		b.addProblem(b.said["procs"], "use at most one process per GPU, or --gpus 0 to run on CPUs",
			"%d processes on %d GPUs: NCCL does not let processes share a GPU", j.Procs, j.GPUs)
	}
	if j.Kind == K8s || j.Kind == Docker {
		b.checkContainer()
	}
	if j.Kind == K8s {
		b.checkK8s()
	}
	if slices.Contains(bySlurm(), j.Kind) {
		b.checkSlurm()
	}
	// Nodes cannot meet at a loopback address, unless all nodes of the inventory have loopback addresses.
	local := func(address string) bool {
		return address == "localhost" || address == "::1" || strings.HasPrefix(address, "127.") || address == "0.0.0.0"
	}
	elsewhere := len(j.Hosts) == 0 || slices.ContainsFunc(j.Hosts, func(h inventory.Host) bool {
		return !local(h.Address)
	})
	if local(j.Master) && j.Nodes.Max > 1 && elsewhere && (b.isSet("master") || len(j.Hosts) > 0) {
		b.addProblem(b.said["master"], "use an address of the first node that the other nodes can reach",
			"%s is a loopback address: each of the %d nodes would wait for the others at its own address", j.Master, j.Nodes.Max)
	}
	b.checkHosts()
}

// checkContainer checks the image and the mounts of a container of Kubernetes or Docker.
func (b *builder) checkContainer() {
	j := b.job
	if j.Image == "" && !b.refused["image"] {
		b.Add(Position{}, "set --image to an image that contains torch", "missing --image IMAGE")
	}
	volume, name := `[a-z0-9]([a-z0-9.-]*[a-z0-9])?`, "PersistentVolumeClaim"
	if j.Kind == Docker {
		volume, name = `[A-Za-z0-9][A-Za-z0-9_.-]*`, "volume"
	}
	for _, m := range j.Mounts {
		if !path.IsAbs(m.Source) && !regexp.MustCompile("^"+volume+"$").MatchString(m.Source) {
			b.addProblem(b.said["mount"], "", "invalid mount source %q: want an absolute path on the node or the name of a %s",
				m.Source, name)
		}
	}
}

func (b *builder) checkK8s() {
	j := b.job
	if !regexp.MustCompile(`^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$`).MatchString(j.Name) {
		b.refuse(b.said["name"], "use a name such as "+b.said["name"].form("train-t5"),
			"Kubernetes requires at most 40 lower-case letters, digits and '-', beginning with a letter")
	}
	switch {
	case j.Gang == "kueue" && j.Queue == "" && !b.refused["queue"]:
		b.addProblem(b.said["gang"], "add --queue NAME; to list the queues, run: kubectl get localqueues", "Kueue requires a queue")
	case j.Gang == "volcano" && j.K8sForm == "trainjob":
		b.addProblem(b.said["gang"], "use --gang coscheduling, or --queue NAME for Kueue",
			"Kubeflow Trainer 2.0 does not support Volcano for a TrainJob")
	case j.Gang == "coscheduling" && j.Queue != "":
		b.addProblem(b.said["queue"], "omit "+b.said["queue"].name(), "coscheduling has no queues")
	}
	if b.isSet("rdzv-id") && !j.Nodes.Elastic() {
		b.addProblem(b.said["rdzv-id"], "omit "+b.said["rdzv-id"].name(), "only an elastic PyTorchJob has a rendezvous ID")
	}
}

// checkSlurm finds conflicting settings of a job that Slurm starts.
func (b *builder) checkSlurm() {
	j := b.job
	if j.Container == "" || !j.BySlurm() {
		if !b.refused["container"] {
			b.checkNoContainer()
		}
		j.Container, j.Image, j.Mounts = "", "", nil
	} else if j.Image == "" && !b.refused["image"] {
		b.addProblem(b.said["container"], "set the image to a .sif or .sqsh file, or docker://NAME",
			"%s requires an image", b.said["container"].name())
	}
	if j.hasWorkers() && j.Container != "" {
		b.addProblem(b.said["container"], "omit "+b.said["slurm-form"].name()+" to run one job on all nodes",
			"%s does not support containers", b.workers())
	}
	if j.hasWorkers() && j.Requeue {
		b.addProblem(b.said["requeue"], "omit "+b.said["slurm-form"].name()+" to run one job on all nodes",
			"%s does not support requeueing: the other jobs cannot find a requeued one", b.workers())
	}
	b.checkSignal()
}

// requeueSignal matches the signals that Slurm sends only for --signal.
var requeueSignal = regexp.MustCompile(`^(?i:(?:SIG)?USR[12]|10|12)$`)

// checkSignal checks sbatch's --signal.
func (b *builder) checkSignal() {
	given := slices.ContainsFunc(b.job.Sbatch, func(option string) bool { return strings.HasPrefix(option, "--signal") })
	said, requeue := b.said["sbatch"], "--requeue"
	if said.At.Line > 0 {
		requeue = "requeue: true"
	}
	switch w := b.job.warning(); {
	case w.Given && w.ToShell && b.job.Requeue && !requeueSignal.MatchString(w.Signal):
		b.addProblem(said, "use USR1 or USR2", "signal %s cannot requeue the job: Slurm ends jobs by TERM, CONT and KILL, also for scancel", w.Signal)
	case given && !w.Given:
		b.addProblem(said, "", "want --signal=SIGNAL@SECONDS, such as --signal=USR1@300")
	case w.Given && w.ToShell && !b.job.Requeue:
		b.addProblem(said, "add "+requeue+", or use --signal=SIGNAL@SECONDS without B: for a program that handles the signal",
			"signal %s would end the batch script: without requeueing, it has no trap", w.Signal)
	}
}

// checkNoContainer rejects container flags for a job without containers. A job file
// may hold such settings for other kinds.
func (b *builder) checkNoContainer() {
	for _, key := range []string{"container", "image", "mount"} {
		switch said := b.said[key]; {
		case !strings.HasPrefix(said.At.File, "--"):
		case !b.job.BySlurm():
			b.addProblem(said, "use --form slurm", "manually started jobs do not support containers")
		default:
			b.addProblem(said, "add --container apptainer, or --container pyxis if srun --help lists --container-image",
				"--%s requires --container", key)
		}
	}
}

// checkHosts rejects hosts that cannot be written to a node's script.
func (b *builder) checkHosts() {
	j := b.job
	switch words := strings.Fields(j.Python); {
	case strings.HasPrefix(j.Python, "-"):
		b.addProblem(b.said["python"], "use a path on the nodes, or the name of a command",
			"invalid interpreter %q: looks like an option", j.Python)
	case len(words) > 1 && classifyFirstWord(words[0]) != pythonFile:
		b.addProblem(b.said["python"], "use the environment's interpreter, such as --python .venv/bin/python",
			"invalid interpreter %q: contains arguments", j.Python)
	}
	if len(j.Hosts) == 0 {
		return
	}
	// Addresses and users that need no quotes in any script. The zone of an IPv6 address
	// is not allowed: it names an interface of one node.
	plainAddress := regexp.MustCompile(`^[A-Za-z0-9._:-]{1,253}$`)
	plainUser := regexp.MustCompile(`^[\pL\pN_][\pL\pN_.+\\-]*$`)
	for _, h := range j.Hosts {
		at := Position{File: h.Position}
		switch {
		case !plainAddress.MatchString(h.Address) || strings.HasPrefix(h.Address, "-"):
			b.Add(at, "use an address that is valid on all nodes",
				"%s: address %q cannot be used in a launch script", h.Name, h.Address)
		case h.User != "" && !plainUser.MatchString(h.User):
			b.Add(at, "", "%s: user %q cannot be used in a launch script", h.Name, h.User)
		}
	}
	if j.BySlurm() || j.Kind == K8s || j.Kind == AIStation {
		b.Add(Position{}, "omit --inventory", "--inventory cannot be used with jobs whose scheduler selects the nodes")
	}
}
