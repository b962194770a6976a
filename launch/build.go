package launch

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/mistake"
	"github.com/dsbuild/dsbuild/inventory"
)

// builder makes a job of what was said about it.
type builder struct {
	mistake.List
	job  *Job
	said map[string]Setting // the last of each key

	submit bool // the job is to be started, not only rendered
}

// wrong notes that what was said of a key cannot be.
func (b *builder) wrong(s Setting, hint, format string, args ...any) {
	at := s.At
	if len(s.Words) > 0 {
		at = s.Words[0].At
	}
	b.wrongAt(at, hint, format, args...)
}

func (b *builder) wrongAt(at Position, hint, format string, args ...any) {
	b.Add(at, hint, format, args...)
}

func (b *builder) oneLine(s Setting) bool {
	if t := s.text(); strings.TrimSpace(t) == "" || strings.ContainsAny(t, "\n\r\x00") || len(t) > 4000 {
		b.wrong(s, "", "%s must be one line of text", s.Key)
		return false
	}
	return true
}

func nearest(word string, known []string) string {
	if near := mistake.Nearest(word, known); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return ""
}

// Request is all that a job is made of.
type Request struct {
	Kind     Kind
	File     Settings // of the job file, if there is one
	Flags    Settings // these go before the file
	Command  []string // script and arguments; these replace the file's
	Hosts    []inventory.Host
	ReadFile func(name string) ([]byte, error) // for a DeepSpeed configuration
	// Ops are the operators of the wheel that the nodes have; nil: not known.
	Ops []string
	// Submit: the job is to be started. It decides the form where there are
	// several and none is said.
	Submit bool
}

// New makes the job of a request. An error about what was said is an *Error with
// all that is wrong.
func New(r Request) (*Job, error) {
	b := &builder{List: mistake.List{Lines: r.File.lines}, job: &Job{Kind: r.Kind}, said: map[string]Setting{}, submit: r.Submit}
	for _, source := range []Settings{r.File, r.Flags} {
		b.take(source)
	}
	b.command(r.Command)
	b.hosts(r.Hosts)
	b.defaults()
	b.check()
	if r.Kind == DeepSpeed {
		b.deepspeed()
	}
	if TakesConfig(r.Kind) {
		b.configuration(r)
	}
	if err := b.Err(); err != nil {
		return nil, err
	}
	return b.job, nil
}

// take applies what one source says. A preset comes first: what else the same
// source says of nodes and GPUs goes before it.
func (b *builder) take(s Settings) {
	for _, preset := range []bool{true, false} {
		for _, said := range s.All {
			k := keyNamed(said.Key)
			if (said.Key == "preset") != preset || k.set == nil || !k.For(b.job.Kind) {
				continue
			}
			b.said[said.Key] = said
			k.set(b, said)
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

func (b *builder) has(key string) bool {
	_, ok := b.said[key]
	return ok
}

// hosts takes the nodes of the inventory.
func (b *builder) hosts(all []inventory.Host) {
	j := b.job
	seen := map[string]string{}
	for _, h := range all {
		if first, twice := seen[h.Node]; twice {
			b.wrongAt(Position{File: h.Position}, "choose one with --limit", "%s and %s are the same node", first, h.Name)
		}
		seen[h.Node] = h.Name
	}
	j.Hosts, j.HostsKnown = all, len(all)
	if len(all) == 0 {
		return
	}
	switch n, said := j.Nodes.Max, b.has("nodes"); {
	case !said || n == 0:
		j.Nodes = Nodes{len(all), len(all)}
	case n > len(all):
		b.wrong(b.said["nodes"], "", "the job wants %d nodes, the inventory has %d", n, len(all))
	default:
		j.Hosts = all[:n]
	}
	if j.Master == "" {
		j.Master = j.Hosts[0].Address
	}
}

// defaults fills in what was not said.
func (b *builder) defaults() {
	j := b.job
	or := func(field *string, value string) {
		if *field == "" {
			*field = value
		}
	}
	or(&j.Name, "train")
	if j.Nodes.Max == 0 {
		j.Nodes = Nodes{1, 1}
	}
	b.processes()
	or(&j.SlurmForm, "job")
	or(&j.K8sForm, "pytorchjob")
	or(&j.DSForm, map[bool]string{true: "nodes", false: "pdsh"}[b.submit])
	or(&j.JAXForm, map[bool]string{true: "manual", false: "slurm"}[len(j.Hosts) > 0])
	or(&j.Rendezvous, map[bool]string{true: "c10d", false: "static"}[j.Nodes.Elastic() || j.workers() || j.Kind == AIStation])
	if j.Nodes.Elastic() && !b.has("max-restarts") {
		j.MaxRestarts = usualRestarts
	}
	if j.workers() && j.JoinTimeout == 0 {
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

// usualRestarts is how many nodes an elastic job may lose where nobody says.
const usualRestarts = 3

// processes decides how many there are on a node, and their CPUs.
func (b *builder) processes() {
	j := b.job
	j.ProcsSaid = b.has("procs")
	j.Slots = len(j.Hosts) > 0 && !b.has("gpus") && !j.ProcsSaid && !slices.ContainsFunc(j.Hosts, func(h inventory.Host) bool { return h.Slots == 0 })
	switch {
	case j.Slots:
		j.GPUs = slices.MaxFunc(j.Hosts, func(a, b inventory.Host) int { return a.Slots - b.Slots }).Slots
	case !b.has("gpus") && (!j.ProcsSaid || j.Kind == JAX):
		j.GPUs = usualGPUs(j.Kind)
	}
	switch {
	case j.Procs > 0:
	case j.Kind == JAX:
		j.Procs = 1
	default:
		j.Procs = max(j.GPUs, 1)
	}
	j.GPUsKnown = b.has("gpus") || j.Slots || j.Procs > 1
	if j.CPUs == 0 {
		j.CPUs = j.Procs + 2
		if j.Kind == JAX {
			j.CPUs = max(j.GPUs/j.Procs, 1) + 2
		}
	}
}

// usualGPUs is what a node is taken to have where nobody says: the whole of a
// usual server, four in the script of the guides, one in a container.
func usualGPUs(k Kind) int {
	switch k {
	case Torchrun:
		return 4
	case AIStation:
		return 1
	}
	return 8
}

// BySlurm reports whether Slurm starts the job.
func (j *Job) BySlurm() bool { return j.Kind == Slurm || j.Kind == JAX && j.JAXForm == "slurm" }

// workers reports whether the job is one-node jobs that meet.
func (j *Job) workers() bool { return j.Kind == Slurm && j.SlurmForm == "workers" }

// check finds what does not go together.
func (b *builder) check() {
	j := b.job
	if j.Nodes.Elastic() {
		b.checkElastic()
	}
	if j.workers() && j.Rendezvous == "static" {
		b.wrong(b.said["rendezvous"], "leave it out", "one-node jobs have no ranks to give: the form workers meets by c10d")
	}
	if j.workers() && j.Nodes.Max < 2 {
		b.wrong(b.said["slurm-form"], "leave --form out for one node", "the form workers is a master and at least one worker")
	}
	if j.Kind == JAX && j.GPUs%j.Procs != 0 && j.GPUs > 0 {
		b.wrong(b.said["procs"], "", "%d GPUs cannot be shared by %d processes: some would have more than others", j.GPUs, j.Procs)
	}
	if (j.Kind == K8s || j.Kind == Docker) && j.Image == "" {
		b.wrongAt(Position{File: "--image"}, "the image that holds torch, or the script too", "no image was named")
	}
	if j.Kind == K8s {
		b.checkK8s()
	}
	if slices.Contains(bySlurm(), j.Kind) {
		b.checkSlurm()
	}
	if j.OnEach() && j.Include+j.Exclude != "" {
		b.wrong(b.said[map[bool]string{true: "include", false: "exclude"}[j.Include != ""]], "choose the nodes with --limit",
			"include and exclude are for one launcher that logs in on the nodes (--form pdsh)")
	}
	if j.Kind == DeepSpeed && b.has("ds-form") && j.DSForm == "nodes" && len(j.Hosts) == 0 {
		b.wrong(b.said["ds-form"], "add -i INVENTORY", "the form nodes has a block for each node, and no nodes were named")
	}
	b.checkMeeting()
	b.checkHosts()
}

func (b *builder) checkElastic() {
	j, nodes := b.job, b.said["nodes"]
	switch {
	case j.Rendezvous == "static":
		b.wrong(b.said["rendezvous"], "leave it out", "ranks cannot be given where nodes come and go: MIN:MAX needs c10d")
	case j.Kind == DeepSpeed:
		b.wrong(nodes, "use launch torchrun or slurm", "DeepSpeed's launcher takes a fixed number of nodes, not MIN:MAX")
	case j.Kind == JAX:
		b.wrong(nodes, "", "JAX takes a fixed number of processes, not MIN:MAX")
	case j.Kind == K8s && j.K8sForm == "trainjob":
		b.wrong(nodes, "use --form pytorchjob", "a TrainJob has a fixed number of nodes, not MIN:MAX")
	}
	if j.MaxRestarts == 0 {
		b.wrong(b.said["max-restarts"], "at least 1; each lost node takes one",
			"an elastic job without restarts does not survive a lost node: the others end with code 1")
	}
}

func (b *builder) checkK8s() {
	j := b.job
	if !regexp.MustCompile(`^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$`).MatchString(j.Name) {
		b.wrong(b.said["name"], "as in train-t5", "Kubernetes cannot call a job %q: lower-case letters, digits and '-', 40 at most, a letter first", j.Name)
	}
	for _, m := range j.Mounts {
		if !path.IsAbs(m.Source) && !regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`).MatchString(m.Source) {
			b.wrong(b.said["mount"], "a path of the node, or the name of a PersistentVolumeClaim", "%q is neither", m.Source)
		}
	}
	switch {
	case j.Gang == "kueue" && j.Queue == "":
		b.wrong(b.said["gang"], "add --queue NAME: 'kubectl get localqueues' lists them", "Kueue admits the jobs of a queue, and none was named")
	case j.Gang == "volcano" && j.K8sForm == "trainjob":
		b.wrong(b.said["gang"], "use --gang coscheduling, or --queue NAME for Kueue", "a TrainJob of Kubeflow Trainer 2.0 knows no Volcano")
	case j.Gang == "coscheduling" && j.Queue != "":
		b.wrong(b.said["queue"], "leave it out", "coscheduling has no queues")
	}
	if b.has("rdzv-id") && !j.Nodes.Elastic() {
		b.wrong(b.said["rdzv-id"], "leave it out", "only an elastic PyTorchJob has a rendezvous with a name")
	}
}

// checkSlurm finds what does not go together in a job that Slurm starts.
func (b *builder) checkSlurm() {
	j := b.job
	if j.Container == "" || !j.BySlurm() {
		b.checkNoContainer()
		j.Container, j.Image, j.Mounts = "", "", nil
	} else if j.Image == "" {
		b.wrong(b.said["container"], "add --image: a .sif or .sqsh file, or docker://NAME", "no image was named")
	}
	if j.workers() && j.Container != "" {
		b.wrong(b.said["container"], "leave --form out: one job of all nodes", "one-node jobs that meet are started in no container")
	}
	if j.workers() && j.Requeue {
		b.wrong(b.said["requeue"], "leave --form out: one job of all nodes", "a one-node job that is put back into the queue is not found by the others any more")
	}
}

// checkNoContainer refuses flags that are for containers where there are none. What a
// file says of them is for other kinds.
func (b *builder) checkNoContainer() {
	for _, key := range []string{"container", "image", "mount"} {
		switch said := b.said[key]; {
		case !strings.HasPrefix(said.At.File, "--"):
		case !b.job.BySlurm():
			b.wrong(said, "use --form slurm", "a job by hand is started in no container")
		default:
			b.wrong(said, "add --container apptainer, or pyxis where srun --help has --container-image", "--%s is for a job in containers", key)
		}
	}
}

// checkMeeting refuses a place where nobody would meet. Nodes that all have
// addresses of one machine do meet there.
func (b *builder) checkMeeting() {
	j := b.job
	local := func(address string) bool {
		return address == "localhost" || address == "::1" || strings.HasPrefix(address, "127.") || address == "0.0.0.0"
	}
	elsewhere := len(j.Hosts) == 0 || slices.ContainsFunc(j.Hosts, func(h inventory.Host) bool { return !local(h.Address) })
	if local(j.Master) && j.Nodes.Max > 1 && elsewhere && (b.has("master") || len(j.Hosts) > 0) {
		b.wrong(b.said["master"], "the address by which the other nodes know the first",
			"%s is each node itself: %d nodes would wait for each other", j.Master, j.Nodes.Max)
	}
}

// Addresses and users as they may stand in any script: no shell makes anything of
// them. The zone of an IPv6 address is one node's own name for an interface.
var (
	plainAddress = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,253}$`)
	plainUser    = regexp.MustCompile(`^[\pL\pN_][\pL\pN_.+\\-]*$`)
)

// checkHosts refuses what blocks for nodes cannot say.
func (b *builder) checkHosts() {
	j := b.job
	if strings.HasPrefix(j.Python, "-") {
		b.wrong(b.said["python"], "a path on the nodes, or the name of a command", "the interpreter is %q, which looks like an option", j.Python)
	}
	if len(j.Hosts) == 0 {
		return
	}
	for _, h := range j.Hosts {
		at := Position{File: h.Position}
		switch {
		case !plainAddress.MatchString(h.Address) || strings.HasPrefix(h.Address, "-"):
			b.wrongAt(at, "an address that all nodes know it by", "%s: the address %q cannot stand in a launch script", h.Name, h.Address)
		case h.User != "" && !plainUser.MatchString(h.User):
			b.wrongAt(at, "", "%s: the user %q cannot stand in a launch script", h.Name, h.User)
		}
	}
	if j.BySlurm() || j.Kind == K8s || j.Kind == AIStation {
		b.wrongAt(Position{File: "-i"}, "leave -i out", "the nodes of a job of this kind are not chosen by an inventory")
	}
}
