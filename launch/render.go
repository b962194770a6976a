package launch

import (
	"embed"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/inventory"
)

//go:embed templates/*.tmpl
var templates embed.FS

//go:embed python
var pythonFiles embed.FS

// Render returns the files that start the job, the one to run first.
func (j *Job) Render() ([]File, error) {
	switch j.Kind {
	case Slurm:
		return j.renderSlurm()
	case Torchrun:
		return j.withNodes("torchrun.sh")
	case Docker:
		return j.withNodes("docker.sh")
	case DeepSpeed:
		return j.renderDeepSpeed()
	case JAX:
		return j.renderJAX()
	case AIStation:
		all, err := j.files(file{"train.sh", "aistation.sh", 0o755}, file{"form.txt", "aistation.txt", 0o644})
		return append(all, j.configFile()...), err
	case K8s:
		return j.files(file{j.Name + ".yaml", j.K8sForm + ".yaml", 0o644})
	}
	return nil, fmt.Errorf("no kind %q", j.Kind)
}

func (j *Job) renderSlurm() ([]File, error) {
	scripts := []file{{j.Name + ".sbatch", "slurm.sbatch", 0o644}}
	if j.workers() {
		scripts = []file{{"submit.sh", "submit.sh", 0o755}, {"master.sbatch", "master.sbatch", 0o644}, {"worker.sbatch", "worker.sbatch", 0o644}}
	}
	all, err := j.files(scripts...)
	return append(all, j.configFile()...), err
}

func (j *Job) renderJAX() ([]File, error) {
	main := file{"jax.sh", "jax.sh", 0o755}
	if j.JAXForm == "slurm" {
		main = file{j.Name + ".sbatch", "jax.sbatch", 0o644}
	}
	all, err := j.files(main)
	if err != nil {
		return nil, err
	}
	blocks, err := j.blocks(main.name)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{BootstrapName, "example_train.py"} {
		source, err := pythonFiles.ReadFile("python/" + name)
		if err != nil {
			return nil, err
		}
		all = append(all, File{name, 0o644, string(source)})
	}
	return append(all, blocks...), nil
}

// BootstrapName is the file that starts a JAX program.
const BootstrapName = "dsbuild_jax.py"

// withNodes is a script that is the same on all nodes, and for an inventory a
// block for each.
func (j *Job) withNodes(script string) ([]File, error) {
	all, err := j.files(file{script, script, 0o755})
	if err != nil {
		return nil, err
	}
	blocks, err := j.blocks(script)
	return slices.Concat(all, j.configFile(), blocks), err
}

// file is a file of a rendering and the template that makes it.
type file struct {
	name, template string
	mode           fs.FileMode
}

func (j *Job) files(wanted ...file) ([]File, error) {
	var all []File
	for _, f := range wanted {
		text, err := execute(f.template, view{Job: j, File: f.name})
		if err != nil {
			return nil, err
		}
		all = append(all, File{f.name, f.mode, text})
	}
	return all, nil
}

// blocks are what is run on each node of the inventory.
func (j *Job) blocks(script string) ([]File, error) {
	var all []File
	for rank, host := range j.Hosts {
		v := view{Job: j, Main: script, Rank: rank, Host: host}
		v.File = fmt.Sprintf("node-%0*d-%s.sh", len(fmt.Sprint(len(j.Hosts)-1)), rank, strings.ReplaceAll(host.Node, "/", "-"))
		text, err := execute("node.sh", v)
		if err != nil {
			return nil, err
		}
		all = append(all, File{v.File, 0o755, text})
	}
	return all, nil
}

// view is what a template sees: a job, and the file or node that is rendered.
type view struct {
	*Job
	File string

	// Of a node's block:
	Main string // the script that it runs
	Rank int
	Host inventory.Host
}

func execute(name string, v view) (string, error) {
	t := template.New("")
	if _, err := t.Funcs(functions(t)).ParseFS(templates, "templates/*.tmpl"); err != nil {
		return "", err
	}
	var out strings.Builder
	if err := t.ExecuteTemplate(&out, name+".tmpl", v); err != nil {
		return "", err
	}
	return v.finished(out.String()), nil
}

// finished is a rendering without the empty lines at its ends, and with a word to
// shellcheck where the user's words look as if they were to be expanded.
func (v view) finished(text string) string {
	text = strings.Trim(text, "\n") + "\n"
	const shell = "#!/bin/bash\n"
	words := append([]string{v.Job.Script, v.WorkDir, v.Python, v.Master, v.DS.File}, v.Args...)
	for _, e := range v.Given() {
		words = append(words, e.Value)
	}
	if strings.HasPrefix(text, shell) && strings.ContainsAny(strings.Join(words, ""), "$`") {
		text = shell + "# What stands in single quotes is meant as it stands there.\n# shellcheck disable=SC2016\n" + strings.TrimPrefix(text, shell)
	}
	return text
}

func functions(t *template.Template) template.FuncMap {
	return template.FuncMap{
		"word":   word,
		"quote":  remote.Quote,
		"argv":   argv,
		"json":   func(v any) string { return jsonText(v) },
		"arg":    func(s string) string { return jsonText(k8sWord(s)) },
		"plural": plural,
		"base":   path.Base,
		"sub":    func(a, b int) int { return a - b },
		"abs":    path.IsAbs,
		"indent": func(by int, name string, v view) (string, error) { return indented(t, by, name, v) },
	}
}

// indented is a part of a rendering, further in or out than it stands in its
// template.
func indented(t *template.Template, by int, name string, v view) (string, error) {
	var out strings.Builder
	if err := t.ExecuteTemplate(&out, name, v); err != nil {
		return "", err
	}
	if by > 0 {
		return strings.ReplaceAll(out.String(), "\n", "\n"+strings.Repeat(" ", by)), nil
	}
	return strings.ReplaceAll(out.String(), "\n"+strings.Repeat(" ", -by), "\n"), nil
}

// word is s as one word of a shell, without quotes where it needs none. It must
// not stand first in a command: there a plain word may be an assignment.
func word(s string) string {
	if regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`).MatchString(s) {
		return s
	}
	return remote.Quote(s)
}

// argv is a program and its arguments as words of a shell, an option with its
// values on each line.
func argv(indent int, program, args []string) string {
	var words []string
	for _, w := range program {
		words = append(words, word(w))
	}
	out := strings.Join(words, " ")
	for _, a := range args {
		if strings.HasPrefix(a, "-") {
			out += " \\\n" + strings.Repeat(" ", indent)
		} else {
			out += " "
		}
		out += word(a)
	}
	return out
}

// k8sWord is a word of a container's command, in which Kubernetes itself would
// replace $(NAME).
func k8sWord(s string) string { return strings.ReplaceAll(s, "$(", "$$(") }

// The rest is what templates ask a job.

// Fixed reports whether the number of nodes is.
func (j *Job) Fixed() bool { return !j.Nodes.Elastic() }

// C10d reports whether the ranks are agreed on.
func (j *Job) C10d() bool { return j.Rendezvous == "c10d" }

// Many reports whether there is more than one node.
func (j *Job) Many() bool { return j.Nodes.Max > 1 }

// SlurmNodes is the number of nodes as Slurm writes it.
func (j *Job) SlurmNodes() string { return strings.ReplaceAll(j.Nodes.String(), ":", "-") }

// Given are the variables whose values are known here.
func (j *Job) Given() []Var { return j.vars(false) }

// Taken are the variables that come from the environment that starts the job.
func (j *Job) Taken() []Var { return j.vars(true) }

func (j *Job) vars(taken bool) []Var {
	var all []Var
	for _, v := range j.Env {
		if v.Taken == taken {
			all = append(all, v)
		}
	}
	if j.NCCLDebug != "" && !taken {
		all = append(all, Var{Name: "NCCL_DEBUG", Value: strings.ToUpper(j.NCCLDebug)})
	}
	return all
}

// Interpreter is the Python that was named or the one on PATH.
func (j *Job) Interpreter() string {
	if j.Python == "" {
		return "python3"
	}
	return j.Python
}

// PythonOf is the interpreter of a node of the inventory.
func (j *Job) PythonOf(h inventory.Host) string {
	if j.Python != "" {
		return j.Python
	}
	return h.Python
}

// HostEnv are the variables that the inventory gives a node.
func (j *Job) HostEnv(h inventory.Host) []Var {
	var all []Var
	for _, name := range slices.Sorted(maps.Keys(h.Env)) {
		all = append(all, Var{Name: name, Value: h.Env[name]})
	}
	return all
}

// GPUsOf is the number of GPUs of a node of the inventory.
func (j *Job) GPUsOf(h inventory.Host) int {
	if j.Slots {
		return h.Slots
	}
	return j.GPUs
}

// RdzvConf is torchrun's --rdzv-conf: how long the nodes wait for each other.
func (j *Job) RdzvConf() string {
	if j.C10d() {
		return fmt.Sprintf("join_timeout=%d", j.JoinTimeout)
	}
	return fmt.Sprintf("timeout=%d", j.JoinTimeout)
}

// StartWait says who waits for the nodes of a job, and for how long: the usual
// times are those of torch (LaunchConfig; c10d's join_timeout), of JAX
// (initialization_timeout) and of DeepSpeed (DEEPSPEED_TIMEOUT).
func (j *Job) StartWait() string {
	who, seconds := "torch waits", 900
	switch {
	case j.Kind == JAX:
		who, seconds = "JAX waits", 300
	case j.Kind == DeepSpeed:
		who, seconds = "DeepSpeed waits", 1800
	case j.C10d():
		seconds = 600
	}
	if j.JoinTimeout > 0 {
		seconds = j.JoinTimeout
	}
	return fmt.Sprintf("%s (%d s)", who, seconds)
}

// Bootstrap is the file that starts a JAX program.
func (j *Job) Bootstrap() string { return BootstrapName }

// DSPython is the interpreter of DeepSpeed's launcher, which is that of the nodes
// too; "" for the command on PATH.
func (j *Job) DSPython() string {
	if j.Python == "" && len(j.Hosts) > 0 {
		return j.Hosts[0].Python
	}
	return j.Python
}

// DockerShm is the shared memory as docker writes it.
func (j *Job) DockerShm() string {
	return strings.NewReplacer("Gi", "g", "Mi", "m").Replace(j.ShmSize)
}

// MountsCode reports whether the program may lie in the folder that the containers are
// started from, and is not sought elsewhere.
func (j *Job) MountsCode() bool {
	return j.WorkDir == "" && !path.IsAbs(j.Script) && !strings.HasPrefix(path.Clean(j.Script), "..")
}

// CodeMark is what that folder has of the program: its file, or the first part of
// its module, without .py where it is a file.
func (j *Job) CodeMark() string {
	if !j.Module {
		return j.Script
	}
	first, _, _ := strings.Cut(j.Script, ".")
	return first
}

// DockerMount is a mount as docker writes it.
func (m Mount) DockerMount() string {
	kind := "volume"
	if path.IsAbs(m.Source) {
		kind = "bind"
	}
	out := fmt.Sprintf("type=%s,source=%s,target=%s", kind, m.Source, m.Target)
	if m.ReadOnly {
		out += ",readonly"
	}
	return out
}

// PyxisMount is a mount as pyxis and apptainer write it.
func (m Mount) PyxisMount() string {
	out := m.Source + ":" + m.Target
	if m.ReadOnly {
		out += ":ro"
	}
	return out
}

// PyxisMounts are all mounts as pyxis writes them.
func (j *Job) PyxisMounts() string {
	var all []string
	for _, m := range j.Mounts {
		all = append(all, m.PyxisMount())
	}
	return strings.Join(all, ",")
}

// ElasticRestarts is how often an elastic job may start its processes again.
func (j *Job) ElasticRestarts() int {
	if j.MaxRestarts > 0 {
		return j.MaxRestarts
	}
	return usualRestarts
}

// FixedRestarts is how often a job of a fixed size may.
func (j *Job) FixedRestarts() int {
	if j.Fixed() {
		return j.MaxRestarts
	}
	return 0
}

// HostVars are the names of the variables that the inventory gives any node.
func (j *Job) HostVars() []string {
	all := map[string]bool{}
	for _, h := range j.Hosts {
		for name := range h.Env {
			all[name] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}
