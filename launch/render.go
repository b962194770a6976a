package launch

import (
	"cmp"
	"embed"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"text/template"

	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
)

//go:embed templates/*.tmpl
var templates embed.FS

//go:embed python
var pythonFiles embed.FS

// Render returns the files that start the job, the main file first.
func (j *Job) Render() ([]File, error) {
	switch j.Kind {
	case Slurm:
		scripts := []file{{j.Name + ".sbatch", "slurm.sbatch", 0o644}}
		if j.hasWorkers() {
			scripts = []file{
				{"submit.sh", "submit.sh", 0o755},
				{"master.sbatch", "master.sbatch", 0o644},
				{"worker.sbatch", "worker.sbatch", 0o644},
			}
		}
		all, err := j.renderFiles(scripts...)
		return append(all, j.configFile()...), err
	case Torchrun:
		return j.withNodes("torchrun.sh")
	case Docker:
		return j.withNodes("docker.sh")
	case JAX:
		return j.renderJAX()
	case AIStation:
		all, err := j.renderFiles(file{"train.sh", "aistation.sh", 0o755}, file{"form.txt", "aistation.txt", 0o644})
		return append(all, j.configFile()...), err
	case K8s:
		return j.renderFiles(file{j.Name + ".yaml", j.K8sForm + ".yaml", 0o644})
	}
	return nil, fmt.Errorf("unknown kind %q", j.Kind)
}

func (j *Job) renderJAX() ([]File, error) {
	main := file{"jax.sh", "jax.sh", 0o755}
	if j.JAXForm == "slurm" {
		main = file{j.Name + ".sbatch", "jax.sbatch", 0o644}
	}
	all, err := j.renderFiles(main)
	if err != nil {
		return nil, err
	}
	blocks, err := j.renderNodeBlocks(main.name)
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

// BootstrapName is the file name of the JAX bootstrap program.
const BootstrapName = "dsbuild_jax.py"

// withNodes renders one script for all nodes and, with an inventory, a block for each
// node.
func (j *Job) withNodes(script string) ([]File, error) {
	all, err := j.renderFiles(file{script, script, 0o755})
	if err != nil {
		return nil, err
	}
	blocks, err := j.renderNodeBlocks(script)
	return slices.Concat(all, j.configFile(), blocks), err
}

// file is a file of a rendering and the template that makes it.
type file struct {
	name, template string
	mode           fs.FileMode
}

func (j *Job) renderFiles(wanted ...file) ([]File, error) {
	var all []File
	for _, f := range wanted {
		text, err := executeTemplate(f.template, view{Job: j, File: f.name})
		if err != nil {
			return nil, err
		}
		all = append(all, File{f.name, f.mode, text})
	}
	return all, nil
}

// renderNodeBlocks renders the start script of each node of the inventory.
func (j *Job) renderNodeBlocks(script string) ([]File, error) {
	var all []File
	for rank, host := range j.Hosts {
		name := fmt.Sprintf("node-%0*d-%s.sh", len(fmt.Sprint(len(j.Hosts)-1)), rank, strings.ReplaceAll(host.Node, "/", "-"))
		v := view{Job: j, File: name, Main: script, Rank: rank, Host: host}
		text, err := executeTemplate("node.sh", v)
		if err != nil {
			return nil, err
		}
		all = append(all, File{v.File, 0o755, text})
	}
	return all, nil
}

func executeTemplate(name string, v view) (string, error) {
	t := template.New("")
	if _, err := t.Funcs(v.functions(t)).ParseFS(templates, "templates/*.tmpl"); err != nil {
		return "", err
	}
	var out strings.Builder
	if err := t.ExecuteTemplate(&out, name+".tmpl", v); err != nil {
		return "", err
	}
	text := strings.Trim(out.String(), "\n") + "\n"
	// shellcheck gets a comment if the user's words look like shell expansions.
	const shell = "#!/bin/bash\n"
	words := append([]string{v.Script, v.WorkDir, v.Python, v.Master, v.DS.File}, v.Args...)
	for _, e := range v.given() {
		words = append(words, e.Value)
	}
	if strings.HasPrefix(text, shell) && strings.ContainsAny(strings.Join(words, ""), "$`") {
		text = shell + "# The text in single quotes must stay unexpanded.\n# shellcheck disable=SC2016\n" +
			strings.TrimPrefix(text, shell)
	}
	return text, nil
}

// functions are what templates can call. They cannot call methods: if a program has a template that
// can, the linker keeps every exported method of the program.
func (v view) functions(t *template.Template) template.FuncMap {
	return template.FuncMap{
		"word": remote.Word,
		"argv": shellArgv,
		"json": func(v any) string { return jsonText(v) },
		// Kubernetes replaces $(NAME), and $$ by $.
		"arg":    func(s string) string { return jsonText(strings.ReplaceAll(s, "$", "$$")) },
		"plural": ui.Count,
		"sub":    func(a, b int) int { return a - b },
		"abs":    path.IsAbs,
		"indent": func(by int, name string, v view) (string, error) { // renders a part and shifts its indentation
			var out strings.Builder
			if err := t.ExecuteTemplate(&out, name, v); err != nil {
				return "", err
			}
			if by > 0 {
				return strings.ReplaceAll(out.String(), "\n", "\n"+strings.Repeat(" ", by)), nil
			}
			return strings.ReplaceAll(out.String(), "\n"+strings.Repeat(" ", -by), "\n"), nil
		},

		"bootstrap":       func() string { return BootstrapName },
		"bySlurm":         v.BySlurm,
		"c10d":            v.c10d,
		"codeMark":        v.codeMark,
		"configArgs":      v.DS.shellArgs,
		"dockerMount":     Mount.dockerMount,
		"dockerShm":       func() string { return strings.NewReplacer("Gi", "g", "Mi", "m").Replace(v.ShmSize) },
		"elasticRestarts": func() int { return cmp.Or(v.MaxRestarts, usualRestarts) },
		"fixed":           v.fixed,
		"envNames": func() string { // without this option, values of the image take precedence
			return strings.Join(lists.Map(slices.Concat(v.given(), v.FromEnv()), func(e Var) string { return e.Name }), ",")
		},
		"fixedRestarts": v.fixedRestarts,
		"given":         v.given,
		"gpusOf":        v.gpusOf,
		"hasConfig":     v.DS.isSet,
		"hostEnv": func(h inventory.Host) []Var {
			return lists.Map(slices.Sorted(maps.Keys(h.Env)), func(name string) Var { return Var{Name: name, Value: h.Env[name]} })
		},
		"hostVars":     v.hostVars,
		"interpreter":  func() string { return cmp.Or(v.Python, "python3") },
		"many":         func() bool { return v.Nodes.Max > 1 },
		"mountsCode":   v.mountsCode,
		"offloads":     v.offloads,
		"onROCm":       v.onROCm,
		"passesConfig": v.DS.isPassed,
		"procsOf":      v.ProcsOf,
		"program":      v.program,
		"pythonOf":     v.pythonOf,
		"pyxisMount":   Mount.pyxisMount,
		"pyxisMounts":  func() string { return strings.Join(lists.Map(v.Mounts, Mount.pyxisMount), ",") },
		"rdzvConf":     v.rdzvConf,
		"requeues":     func() bool { return v.Requeue && v.warning().ToShell },
		"shape":        v.shape,
		"slurmNodes":   func() string { return strings.ReplaceAll(v.Nodes.String(), ":", "-") },
		"startWait":    v.startWait,
		"taken":        v.FromEnv,
		"warning":      v.warning,
		"worldSize":    v.WorldSize,
	}
}

// shellArgv writes a program and its arguments as shell words, one option with its
// values per line.
func shellArgv(indent int, program, args []string) string {
	words := lists.Map(program, remote.Word)
	out := strings.Join(words, " ")
	for _, a := range args {
		if strings.HasPrefix(a, "-") {
			out += " \\\n" + strings.Repeat(" ", indent)
		} else {
			out += " "
		}
		out += remote.Word(a)
	}
	return out
}

// fixed reports whether the number of nodes is fixed.
func (j *Job) fixed() bool { return !j.Nodes.Elastic() }

// c10d reports whether the nodes agree on their ranks.
func (j *Job) c10d() bool { return j.Rendezvous == "c10d" }

// given are the variables with a value.
func (j *Job) given() []Var { return j.vars(false) }

// FromEnv returns the variables whose values come from the environment that starts the job.
func (j *Job) FromEnv() []Var { return j.vars(true) }

func (j *Job) vars(taken bool) []Var {
	var all []Var
	for _, v := range j.Env {
		if v.FromEnv == taken {
			all = append(all, v)
		}
	}
	if j.NCCLDebug != "" && !taken {
		all = append(all, Var{Name: "NCCL_DEBUG", Value: strings.ToUpper(j.NCCLDebug)})
	}
	return all
}

// pythonOf is the interpreter of a node of the inventory.
func (j *Job) pythonOf(h inventory.Host) string {
	return cmp.Or(j.Python, h.Python)
}
