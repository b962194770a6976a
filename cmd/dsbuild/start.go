package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"

	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/internal/ui"
)

func newStartCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:        "start",
		SuggestFor: []string{"init", "wizard", "new"},
		Short:      "Ask what to run and where, show the command for it, and run it",
		Long: `Ask what to run and where, show the command for it, and run it: a training job on
this machine, on several by SSH, on a Slurm cluster, with JAX, elastic; or look for
what is wrong with one that does not work.

Answers are read from standard input, one on each line; an empty one takes what
stands in brackets. Where standard input is no terminal, an answer that cannot be,
and one that is missing, are exit code 2.`,
		Example: `  dsbuild start
  printf '1\ntrain.py --epochs 3\n4\n\ny\n' | dsbuild start`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runStart(cmd.Context(), a, cmd.CommandPath())
		},
	}
}

// menu is a conversation that ends in commands.
type menu struct {
	ctx  context.Context
	talk *ui.Dialogue
	err  error // the first; then nothing more is asked
}

// plan is what a conversation has come to.
type plan struct {
	commands [][]string // of dsbuild, one after the other
	advice   string     // what else helps
}

// branch is an entry of a menu.
type branch struct {
	title string
	ask   func(*menu) plan
}

func runStart(ctx context.Context, a *app, command string) error {
	m := &menu{ctx: ctx, talk: ui.NewDialogue(a.stdin, a.stderr)}
	p := m.choose("What do you want to do?", branches())
	if m.err == nil && p.advice != "" {
		m.talk.Say(p.advice)
	}
	run := false
	if m.err == nil && len(p.commands) > 0 {
		m.talk.Say("\nThe command for that:\n")
		for _, words := range p.commands {
			m.talk.Say("  " + shellLine(words))
		}
		m.talk.Say("")
		run = m.yes("Run it now", "y")
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case m.err != nil:
		return hint.With(usageErrorf(command, "%w", m.err), "an answer on each line; 'dsbuild start' at a terminal shows the questions")
	case !run:
		return nil
	}
	for _, words := range p.commands {
		if err := execute(ctx, newRootCommand(a), words); err != nil {
			return err
		}
	}
	return nil
}

// branches are the entries of the first menu.
func branches() []branch {
	return []branch{
		{"run a job on this machine", onThisMachine},
		{"run a job on several machines, by SSH", overSSH},
		{"run a job on a Slurm cluster", onSlurm},
		{"run a JAX program", withJAX},
		{"run a job that goes on with the nodes that are left (elastic)", elasticJob},
		{"find out why a job does not work", troubles},
	}
}

func onThisMachine(m *menu) plan {
	script := m.script()
	words := append([]string{"launch", "torchrun"}, m.gpus("GPUs of this machine, 0 for none", localGPUs())...)
	words = append(words, m.python()...)
	return plan{commands: [][]string{slices.Concat(words, []string{"--submit", "--"}, script)}}
}

func overSSH(m *menu) plan {
	nodes := m.inventory()
	kind := m.pick("The launcher", "torchrun", "torchrun", "deepspeed")
	script := m.script()
	words := append([]string{"launch", kind, "-i", nodes}, m.gpus("GPUs of each node, 0 for none; empty: what the inventory says", "")...)
	return m.checked(nodes, slices.Concat(words, []string{"--submit", "--"}, script))
}

func onSlurm(m *menu) plan {
	words := append([]string{"launch", "slurm", "--nodes", m.number("Nodes", "1", 1)}, m.gpus("GPUs of each node, 0 for none", "8")...)
	words = append(words, m.partition()...)
	return plan{commands: [][]string{slices.Concat(words, []string{"--submit", "--"}, m.script())}}
}

func withJAX(m *menu) plan {
	switch m.pick("Where", "here", "here", "ssh", "slurm") {
	case "ssh":
		nodes := m.inventory()
		script := m.script()
		words := append([]string{"launch", "jax", "-i", nodes}, m.gpus("GPUs of each node, 0 for none", "8")...)
		return m.checked(nodes, slices.Concat(words, []string{"--submit", "--"}, script))
	case "slurm":
		words := append([]string{"launch", "jax", "--nodes", m.number("Nodes", "1", 1)}, m.gpus("GPUs of each node, 0 for none", "8")...)
		words = append(words, m.partition()...)
		words = append(words, "-o", m.text("A folder that all nodes see, for the scripts", "job"))
		return plan{commands: [][]string{slices.Concat(words, []string{"--submit", "--"}, m.script())}}
	}
	script := m.script()
	words := append([]string{"launch", "jax", "--form", "manual"}, m.gpus("GPUs of this machine, 0 for none", localGPUs())...)
	words = append(words, m.python()...)
	return plan{commands: [][]string{slices.Concat(words, []string{"--submit", "--"}, script)}}
}

func elasticJob(m *menu) plan {
	m.talk.Say("The program must load its last checkpoint when it starts: each lost node begins it anew.")
	where := m.pick("Where", "ssh", "ssh", "slurm")
	nodes := ""
	if where == "ssh" {
		nodes = m.inventory()
	}
	least := m.number("The fewest nodes that will do", "1", 1)
	most := m.number("The most nodes", "2", atLeast(least))
	script := m.script()
	if where == "slurm" {
		words := append([]string{"launch", "slurm", "--nodes", least + ":" + most}, m.gpus("GPUs of each node, 0 for none", "8")...)
		words = append(words, m.partition()...)
		return plan{commands: [][]string{slices.Concat(words, []string{"--submit", "--"}, script)}}
	}
	words := append([]string{"launch", "torchrun", "-i", nodes, "--nodes", least + ":" + most}, m.gpus("GPUs of each node, 0 for none; empty: what the inventory says", "")...)
	return m.checked(nodes, slices.Concat(words, []string{"--submit", "--"}, script))
}

// troubles are the signs of docs/troubleshooting.md, by what finds the cause.
func troubles(m *menu) plan {
	return m.choose("What do you see?", []branch{
		{"nothing happens, or it times out", func(m *menu) plan { return plan{commands: [][]string{{"check", m.inventory()}}} }},
		{"address already in use", func(m *menu) plan { return plan{commands: [][]string{{"check", m.inventory()}}} }},
		{"data or files are missing on a node, or a disk is full", func(m *menu) plan {
			nodes := m.inventory()
			return plan{commands: [][]string{{"check", nodes, "--data", m.text("The data, a path that every node must see", "")}}}
		}},
		{"modules or names are missing, versions differ", func(m *menu) plan { return plan{commands: [][]string{{"verify", m.inventory()}}} }},
		{"a launch script of mine does something else", func(m *menu) plan { return plan{commands: [][]string{{"launch", "lint", m.text("The script", "")}}} }},
		{"out of memory", func(*menu) plan { return plan{advice: outOfMemory} }},
		{"a Slurm job does not start", func(*menu) plan { return plan{advice: slurmWaits, commands: [][]string{{"nodes", "slurm:"}}} }},
	})
}

// What helps where no command of dsbuild's can look.
const (
	outOfMemory = `In this order: fewer samples at once and more accumulated steps (the batch stays),
bf16, gradient checkpointing, ZeRO-2 and then ZeRO-3, offload to the CPU, to NVMe:
  dsbuild launch deepspeed --zero 3 --offload cpu -- train.py
With JAX: --mem-fraction 0.8. More in docs/troubleshooting.md.`
	slurmWaits = `  squeue --me --start                 why it waits, and when it may start
  scontrol show job ID                what it asks for
  scancel ID                          end it
The nodes that Slurm has:`
)

// checked puts a check of the nodes before a job, where that is wanted.
func (m *menu) checked(nodes string, words []string) plan {
	if m.yes("Check the nodes first", "y") {
		return plan{commands: [][]string{{"check", nodes}, words}}
	}
	return plan{commands: [][]string{words}}
}

// ask asks a question, unless an earlier one had no answer.
func (m *menu) ask(question, usual string, check func(string) error) string {
	if m.err != nil {
		return ""
	}
	var answer string
	answer, m.err = m.talk.Ask(m.ctx, question, usual, check)
	return answer
}

// choose has one entry chosen and asks on there.
func (m *menu) choose(question string, all []branch) plan {
	if m.err != nil {
		return plan{}
	}
	m.talk.Say(question)
	for i, b := range all {
		m.talk.Say(fmt.Sprintf("  %d  %s", i+1, b.title))
	}
	answer := m.ask("A number", "", func(s string) error {
		if n, err := strconv.Atoi(s); err != nil || n < 1 || n > len(all) {
			return fmt.Errorf("a number from 1 to %d is wanted", len(all))
		}
		return nil
	})
	if m.err != nil {
		return plan{}
	}
	return all[atLeast(answer)-1].ask(m)
}

// atLeast is a number that was checked already; 1 where there is none.
func atLeast(answer string) int {
	n, err := strconv.Atoi(answer)
	if err != nil {
		return 1
	}
	return n
}

func (m *menu) pick(question, usual string, words ...string) string {
	return m.ask(question+" ("+strings.Join(words, ", ")+")", usual, func(s string) error {
		if !slices.Contains(words, s) {
			return fmt.Errorf("one of these is wanted: %s", strings.Join(words, ", "))
		}
		return nil
	})
}

func (m *menu) yes(question, usual string) bool {
	answer := m.ask(question+" (y, n)", usual, func(s string) error {
		if !slices.Contains([]string{"y", "yes", "n", "no"}, strings.ToLower(s)) {
			return errors.New("y or n is wanted")
		}
		return nil
	})
	return m.err == nil && strings.HasPrefix(strings.ToLower(answer), "y")
}

func (m *menu) number(question, usual string, least int) string {
	return m.ask(question, usual, func(s string) error {
		if n, err := strconv.Atoi(s); err != nil || n < least || strconv.Itoa(n) != s {
			return fmt.Errorf("a number from %d on is wanted", least)
		}
		return nil
	})
}

func (m *menu) text(question, usual string) string {
	return m.ask(question, usual, func(s string) error {
		if s == "" || strings.HasPrefix(s, "-") {
			return errors.New("a name is wanted")
		}
		return nil
	})
}

// inventory asks for the nodes.
func (m *menu) inventory() string {
	return m.text("The nodes: an inventory, a hostfile, or names such as gpu[01-04]", "inventory.yaml")
}

// gpus asks for the GPUs of a machine; none are one process on the CPU.
func (m *menu) gpus(question, usual string) []string {
	answer := m.ask(question, usual, func(s string) error {
		if n, err := strconv.Atoi(s); (s != "" || usual != "") && (err != nil || n < 0 || n > 64) {
			return errors.New("a number from 0 to 64 is wanted")
		}
		return nil
	})
	if answer == "" {
		return nil
	}
	return []string{"--gpus", answer}
}

func (m *menu) partition() []string {
	return m.optional("--partition", "The partition; empty: the cluster's default")
}

func (m *menu) python() []string {
	return m.optional("--python", "The Python of the environment; empty: what is on PATH")
}

// optional asks for the value of a flag that may be left out.
func (m *menu) optional(flag, question string) []string {
	answer := m.ask(question, "", func(s string) error {
		if strings.HasPrefix(s, "-") {
			return errors.New("a name is wanted")
		}
		return nil
	})
	if answer == "" {
		return nil
	}
	return []string{flag, answer}
}

// script asks for the program and its arguments, as one would type them.
func (m *menu) script() []string {
	answer := m.ask("The program and its arguments", "", func(s string) error {
		words, err := shellWords(s)
		switch {
		case err != nil:
			return err
		case len(words) == 0 || strings.HasPrefix(words[0], "-"):
			return errors.New("a Python file is wanted, as in: train.py --epochs 3")
		}
		return nil
	})
	words, err := shellWords(answer)
	m.err = cmp.Or(m.err, err)
	return words
}

// shellWords takes a line apart as a shell does; what a shell would replace is
// refused, for it would be replaced here, and not where the program runs.
func shellWords(s string) ([]string, error) {
	var words []*syntax.Word
	err := syntax.NewParser().Words(strings.NewReader(s), func(w *syntax.Word) bool {
		words = append(words, w)
		return true
	})
	if err != nil {
		return nil, err
	}
	fields, err := expand.Fields(&expand.Config{Env: expand.ListEnviron(), NoUnset: true}, words...)
	if err != nil {
		return nil, fmt.Errorf("%w; what stands in single quotes is taken as it is", err)
	}
	return fields, nil
}

// shellLine is a command of dsbuild as one can type it.
func shellLine(words []string) string {
	line := "dsbuild"
	for _, w := range words {
		quoted, err := syntax.Quote(w, syntax.LangBash)
		if err != nil {
			quoted = strconv.Quote(w)
		}
		line += " " + quoted
	}
	return line
}

// localGPUs counts the GPUs of this machine.
func localGPUs() string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "nvidia-smi", "--list-gpus").Output()
	if err != nil {
		return "0"
	}
	return strconv.Itoa(strings.Count(string(out), "GPU "))
}
