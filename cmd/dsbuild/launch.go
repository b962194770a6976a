package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/internal/atomicfile"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/launch"
	"github.com/dsbuild/dsbuild/wheel"
)

func newLaunchCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "launch",
		Short: "Generate, submit and lint launch scripts",
		Long: `Generate, submit and lint scripts that start a training job.

The generated scripts and manifests run without edits, and comments explain
every default. With --submit, the job is also run: on the nodes of an inventory
over SSH, on this machine, or through Slurm.

Describe the job with flags, a YAML file (-f job.yaml), or both; flags override
the file. Its keys are script (or module), args and the flag names, but
slurm-form, jax-form or k8s-form for --form, ds-config for --config, ds-auto for
--auto, and jax-platforms for --platforms.`,
		Example: `  # Generate a Slurm batch script
  $ dsbuild launch slurm --preset small -- train.py --epochs 3 > train.sbatch

  # Run a job over SSH
  $ dsbuild launch torchrun -i inventory.yaml --gpus 8 --submit -- train.py`,
	}
	for _, k := range launch.Kinds() {
		cmd.AddCommand(newLaunchKindCommand(a, k))
	}
	cmd.AddCommand(newLintCommand(a))
	return cmd
}

// launchFlags are the flags of dsbuild launch KIND that do not describe the job itself.
type launchFlags struct {
	kind      launch.Launcher
	inventory string
	limit     string
	unset     nodeDefaults
	file      string
	out       string
	wheel     string
	submit    bool
	grace     time.Duration
	logs      string
	json      bool
	said      launch.Settings // by flags
	command   []string        // script and arguments
	inputs    []string        // files that the command reads
}

// programUse is the use of a command that takes a program and its arguments.
const programUse = " [flags] -- SCRIPT [ARGS...]"

func newLaunchKindCommand(a *app, kind launch.KindInfo) *cobra.Command {
	f := launchFlags{kind: kind.Kind}
	cmd := &cobra.Command{
		Use: string(kind.Kind) + programUse,
		SuggestFor: map[launch.Launcher][]string{
			launch.Slurm: {"sbatch", "srun"}, launch.Torchrun: {"torch", "pytorch", "deepspeed"}, launch.K8s: {"kubernetes", "kubectl"},
		}[kind.Kind],
		Short: "Generate " + kind.Short,
		Long: `Generate ` + kind.Short + `.

The result is printed, with a heading for each file if there are several, or
written to --output.`,
		Annotations: map[string]string{
			helpSeeAlso: `"dsbuild check" checks the nodes before a job; "dsbuild launch lint" checks existing scripts.`,
		},
		Example: launchExample(kind.Kind),
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.command = args
			for _, k := range launch.Keys() {
				flag := cmd.Flags().Lookup(k.FlagName())
				if !k.For(f.kind) || !flag.Changed {
					continue
				}
				words := []string{flag.Value.String()}
				if v, ok := flag.Value.(*jobFlag); ok {
					words = v.words
				}
				f.said.Say(k.Name, "--"+k.FlagName(), words...)
			}
			return runLaunch(cmd.Context(), a, f)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.file, "file", "f", "", "`FILE` Job file (YAML), or - for standard input")
	flags.StringVarP(&f.out, "output", "o", "", "`PATH` Output file, or directory for several files (default: standard output)")
	inGroup(cmd, groupJob, "file", "output")
	if launch.TakesInventory(kind.Kind) {
		flags.StringVarP(&f.inventory, "inventory", "i", "", "`INVENTORY` Nodes of the job")
		addLimitFlag(cmd, &f.limit)
		f.unset.addUserFlag(cmd)
		inGroup(cmd, groupJob, "inventory", "limit", "user")
		flagsNeed(cmd, "inventory", "limit", "user")
	}
	for _, k := range launch.Keys() {
		if !k.For(kind.Kind) {
			continue
		}
		if k.IsBool() {
			flags.Bool(k.FlagName(), false, k.Help)
		} else {
			flags.Var(&jobFlag{key: k}, k.FlagName(), k.Help)
		}
		inGroup(cmd, k.Group, k.FlagName())
	}
	if launch.TakesConfig(kind.Kind) {
		flags.StringVar(&f.wheel, "wheel", "", "`WHEEL` Check the DeepSpeed configuration against the ops of this wheel")
		inGroup(cmd, launch.GroupDeepSpeed, "wheel")
	}
	f.addSubmit(cmd)
	return cmd
}

func launchExample(kind launch.Launcher) string {
	type example struct{ about, flags string }
	examples := map[launch.Launcher][]example{
		launch.Slurm: {
			{"Generate a batch script", "--preset small --partition gpu1 -- train.py --epochs 3"},
			{"Generate one job per node, with a script that submits them", "--nodes 4 --gpus 8 --form workers -o job -- train.py"},
		},
		launch.Torchrun: {
			{"Generate a script for one machine", "--gpus 4 --zero 2 --offload cpu -- train.py --bf16"},
			{"Generate scripts for the nodes of an inventory", "-i inventory.yaml --zero 3 -o job -- train.py"},
			{"Run a job on them", "-i inventory.yaml --gpus 8 --submit -- train.py"},
		},
		launch.JAX: {
			{"Generate a batch script for Slurm", "--nodes 2 --gpus 8 -o job -- train.py"},
			{"Generate a script to start on each host", "--form manual --nodes 2 --gpus 0 -o job -- train.py"},
		},
		launch.AIStation: {
			{"Generate a fixed-size job", "--nodes 2 --gpus 1 --cpus 15 -o job -- main.py"},
			{"Generate an elastic job", "--nodes 2:8 -- main.py"},
		},
		launch.K8s: {
			{"Generate a PyTorchJob", "--nodes 2 --image train:1 --mount data:/data -- train.py"},
			{"Generate a TrainJob", "--form trainjob --nodes 4 --image train:1 -- train.py"},
		},
		launch.Docker: {
			{"Generate a script for each node", "-i inventory.yaml --image train:1 -o job -- train.py"},
		},
	}[kind]
	texts := lists.Map(examples, func(e example) string {
		return "  # " + e.about + "\n  $ dsbuild launch " + string(kind) + " " + e.flags
	})
	return strings.Join(texts, "\n\n")
}

// jobFlag keeps the text of a flag; package launch checks it, as it checks the values of
// a file.
type jobFlag struct {
	key   launch.Key
	words []string
}

// Set keeps the last value of the flag, or all values if the key may repeat.
func (f *jobFlag) Set(word string) error {
	if !f.key.Repeats() {
		f.words = nil
	}
	f.words = append(f.words, word)
	return nil
}

// String is the text of the flag, and "" before it is set, so that the help shows no
// default.
func (f *jobFlag) String() string { return strings.Join(f.words, " ") }

// Type is the placeholder of the value in the help.
func (f *jobFlag) Type() string { return f.key.Placeholder }

func runLaunch(ctx context.Context, a *app, f launchFlags) error {
	f.inputs = append(slices.Clone(f.command), f.file, f.inventory, f.wheel)
	r := launch.Request{Kind: f.kind, Flags: f.said, Command: f.command, ReadFile: func(name string) ([]byte, error) {
		f.inputs = append(f.inputs, name)
		return os.ReadFile(name)
	}}
	inv, err := &inventory.Inventory{}, error(nil) // empty without --inventory
	if f.file != "" {
		if r.File, err = launch.Read(f.file, a.stdin); err != nil {
			return err
		}
	}
	if f.inventory != "" {
		if inv, err = a.loadInventory(ctx, f.inventory, f.limit, f.unset); err != nil {
			return err
		}
		r.Hosts = inv.Hosts
	}
	if f.wheel != "" {
		contents, err := wheel.Inspect(ctx, f.wheel)
		if err != nil {
			return noWheel(err)
		}
		r.Ops = append([]string{}, contents.Ops...)
	}
	job, err := launch.New(r)
	if err != nil {
		return err
	}
	if job.BySlurm() && slices.Contains([]string{".log", ".out", ".err"}, filepath.Ext(f.out)) {
		return &usageError{
			err:  fmt.Errorf("--output %s: the generated script would be written to a log file", f.out),
			hint: "for the job's output, use --log " + f.out,
		}
	}
	files, err := job.Render()
	if err != nil {
		return err
	}
	if f.submit {
		return submitJob(ctx, a, f, inv, job, files)
	}
	if f.out == "" {
		return printFiles(a.stdout, files)
	}
	err = writeFiles(a, f, files)
	var path *fs.PathError
	if errors.As(err, &path) && fault.Hint(err) == "" {
		return usagef("cannot write --output %s: %w", f.out, err)
	}
	return err
}

// printFiles prints one file as it is, and several each below its name.
func printFiles(w io.Writer, files []launch.File) error {
	for i, f := range files {
		heading := ""
		if len(files) > 1 {
			heading = fmt.Sprintf("==> %s <==\n", f.Name)
			if i > 0 {
				heading = "\n" + heading
			}
		}
		if _, err := io.WriteString(w, heading+f.Text); err != nil {
			return err
		}
	}
	return nil
}

// warnOfOlderJob lists the start scripts of another job in a directory, because starting all scripts there also starts
// its ranks.
func (a *app) warnOfOlderJob(directory string, targets []string) {
	entries, err := os.ReadDir(directory)
	if err != nil {
		return // writing reports it
	}
	for _, e := range entries {
		at := filepath.Join(directory, e.Name())
		if script, err := filepath.Match("node-*.sh", e.Name()); script && err == nil && !slices.Contains(targets, at) {
			a.reporter.Warn("%s is from another job: remove it if that job has ended", ui.Clean(at))
		}
	}
}

// writeFiles writes one file to --output, or several to this directory.
func writeFiles(a *app, f launchFlags, files []launch.File) error {
	path := f.out
	info, err := os.Stat(path)
	directory := err == nil && info.IsDir() || strings.HasSuffix(path, "/")
	if len(files) > 1 || directory {
		if err == nil && !info.IsDir() {
			err := fmt.Errorf("--output: %s is a file, but the job has %d files", path, len(files))
			return &usageError{err: err, hint: "specify a directory"}
		}
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
	}
	var targets []string
	for _, file := range files {
		to := path
		if len(files) > 1 || directory {
			to = filepath.Join(path, file.Name)
		}
		if err := checkOutput("--output", to, f.inputs...); err != nil {
			return err
		}
		targets = append(targets, to)
	}
	for i, file := range files {
		to := targets[i]
		if i == 0 && len(files) > 1 {
			a.warnOfOlderJob(path, targets)
		}
		if err := atomicfile.Write(to, strings.NewReader(file.Text), file.Mode); err != nil {
			return err
		}
		a.reporter.Note("%s", ui.Clean(to))
	}
	return nil
}
