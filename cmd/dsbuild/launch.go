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
		Long: `Generate the scripts and manifests that start a training job. They run without
edits, and comments explain every default. With --submit, the job is also run:
on the nodes of an inventory over SSH, on this machine, or through Slurm.
"launch lint" checks existing scripts.

Describe the job with flags, a YAML file (-f job.yaml), or both. The keys of the
file are the names of the flags; flags override the file.`,
		Example: `  dsbuild launch slurm --preset small -- train.py --epochs 3 > train.sbatch
  dsbuild launch torchrun -i inventory.yaml --gpus 8 -o job -- train.py
  dsbuild launch torchrun -i inventory.yaml --gpus 8 --submit -- train.py`,
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
	file      string
	out       string
	wheel     string
	submit    bool
	grace     time.Duration
	logs      string
	json      bool
	said      launch.Settings // by flags
	command   []string        // script and arguments
}

// programUse is the use of a command that takes a program and its arguments.
const programUse = " [flags] -- SCRIPT [ARGS...]"

func newLaunchKindCommand(a *app, kind launch.KindInfo) *cobra.Command {
	f := launchFlags{kind: kind.Kind}
	cmd := &cobra.Command{
		Use:   string(kind.Kind) + programUse,
		Short: "Generate " + kind.Short,
		Long: `Generate ` + kind.Short + `.
The result is printed, with a heading for each file if there are several, or
written to --output.`,
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
	flags.StringVarP(&f.file, "file", "f", "", "Job `FILE` (YAML), or - for standard input")
	flags.StringVarP(&f.out, "output", "o", "", "Output `PATH`: a file, or a directory for several files")
	if launch.TakesInventory(kind.Kind) {
		flags.StringVarP(&f.inventory, "inventory", "i", "", "`INVENTORY` of the nodes")
		addLimitFlag(cmd, &f.limit)
		flagsNeed(cmd, "inventory", "limit")
	}
	if launch.TakesConfig(kind.Kind) {
		flags.StringVar(&f.wheel, "wheel", "", "Check the DeepSpeed configuration against the ops of this `WHEEL`")
	}
	f.addSubmit(cmd)
	for _, k := range launch.Keys() {
		switch {
		case !k.For(kind.Kind):
		case k.IsBool():
			flags.Bool(k.FlagName(), false, k.Help)
		default:
			flags.Var(&jobFlag{key: k}, k.FlagName(), k.Help)
		}
	}
	return cmd
}

func launchExample(kind launch.Launcher) string {
	examples := map[launch.Launcher][]string{
		launch.Slurm: {
			"--preset small --partition gpu1 -- train.py --epochs 3",
			"--nodes 4 --gpus 8 --form workers -o job -- train.py",
		},
		launch.Torchrun: {
			"--gpus 4 -- train.py",
			"--gpus 4 --zero 2 --offload cpu -- pretraining.py --bf16",
			"-i inventory.yaml --zero 3 --wheel dist/*.whl -o job -- train.py",
			"-i inventory.yaml --gpus 8 --submit -- train.py",
		},
		launch.JAX: {
			"--nodes 2 --gpus 8 -o job -- train.py",
			"--form manual --nodes 2 --gpus 0 --procs 2 -o job -- train.py",
		},
		launch.AIStation: {
			"--nodes 2 --gpus 1 --cpus 15 -o job -- main.py",
			"--nodes 2:8 -- main.py",
		},
		launch.K8s: {
			"--preset small --image registry.example/train:1 --mount data:/data -- train.py",
			"--form trainjob --nodes 4 --image registry.example/train:1 -- train.py",
		},
		launch.Docker: {
			"-i inventory.yaml --image registry.example/train:1 -o job -- train.py",
		},
	}[kind]
	lines := lists.Map(examples, func(e string) string { return "  dsbuild launch " + string(kind) + " " + e })
	return strings.Join(lines, "\n")
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
	r := launch.Request{Kind: f.kind, Flags: f.said, Command: f.command, ReadFile: os.ReadFile}
	inv, err := &inventory.Inventory{}, error(nil) // empty without --inventory
	if f.file != "" {
		if r.File, err = launch.Read(f.file, a.stdin); err != nil {
			return err
		}
	}
	if f.inventory != "" {
		if inv, err = a.loadInventory(ctx, f.inventory, f.limit); err != nil {
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
			err:  fmt.Errorf("--output %s: this is where the script would be written", f.out),
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
	err = writeFiles(a, f.out, files)
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

// writeFiles writes one file to path, or several to the directory path.
func writeFiles(a *app, path string, files []launch.File) error {
	info, err := os.Stat(path)
	directory := err == nil && info.IsDir() || strings.HasSuffix(path, "/")
	if len(files) > 1 || directory {
		if err == nil && !info.IsDir() {
			err := fmt.Errorf("--output %s is a file, but the job has %d files", path, len(files))
			return &usageError{err: err, hint: "specify a directory"}
		}
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
	}
	var targets []string
	for _, f := range files {
		to := path
		if len(files) > 1 || directory {
			to = filepath.Join(path, f.Name)
		}
		if info, err := os.Stat(to); err == nil && info.IsDir() {
			return usagef("--output %s: %s is a directory", path, to)
		}
		targets = append(targets, to)
	}
	for i, f := range files {
		to := targets[i]
		if err := atomicfile.Write(to, strings.NewReader(f.Text), f.Mode); err != nil {
			return err
		}
		a.reporter.Note("%s", ui.Clean(to))
	}
	return nil
}
