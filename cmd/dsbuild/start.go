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
		Use:   "start",
		Short: "Ask what to run and where, show the command for it, and run it",
		Long: `Ask what to run and where, show the command for it, and run it: a training job on
this machine, on several machines over SSH, on a Slurm cluster, with JAX, or elastic;
or find the fault of a job that does not work.

Answers are read from standard input, one on each line; an empty line takes the
default in brackets. Without a terminal, an invalid or missing answer exits with 2.`,
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
	err  error // the first error; after it the menu asks nothing more
}

// plan is the result of a conversation.
type plan struct {
	commands [][]string // of dsbuild, one after the other
	advice   string     // further advice
}

// branch is an entry of a menu.
type branch struct {
	title string
	ask   func(*menu) plan
}

func runStart(ctx context.Context, a *app, command string) error {
	m := &menu{ctx: ctx, talk: ui.NewDialogue(a.stdin, a.stderr)}
	p := m.chooseBranch("What do you want to do?", mainMenu())
	if m.err == nil && p.advice != "" {
		m.talk.Say(p.advice)
	}
	run := false
	if m.err == nil && len(p.commands) > 0 {
		m.talk.Say("\nThe command:\n")
		for _, words := range p.commands {
			m.talk.Say("  " + shellLine(words))
		}
		m.talk.Say("")
		run = m.askYesNo("Run it now", "y")
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case m.err != nil:
		return hint.With(usageErrorf(command, "%w", m.err), "write one answer on each line; 'dsbuild start' at a terminal shows the questions")
	case !run:
		return nil
	}
	for _, words := range p.commands {
		if err := executeCommand(ctx, newRootCommand(a), words); err != nil {
			return err
		}
	}
	return nil
}

// mainMenu returns the entries of the first menu.
func mainMenu() []branch {
	return []branch{
		{"run a job on this machine", onThisMachine},
		{"run a job on several machines, over SSH", overSSH},
		{"run a job on a Slurm cluster", onSlurm},
		{"run a JAX program", withJAX},
		{"run an elastic job: it continues when a node is lost", elasticJob},
		{"find out why a job does not work", troubleMenu},
	}
}

func onThisMachine(m *menu) plan {
	script := m.askScript()
	words := append([]string{"launch", "torchrun"}, m.askGPUs("GPUs on this machine, 0 for none", localGPUs())...)
	words = append(words, m.askPython()...)
	return plan{commands: [][]string{slices.Concat(words, []string{"--submit", "--"}, script)}}
}

func overSSH(m *menu) plan {
	nodes := m.askInventory()
	kind := m.pickWord("The launcher", "torchrun", "torchrun", "deepspeed")
	script := m.askScript()
	words := append([]string{"launch", kind, "-i", nodes}, m.askGPUs("GPUs on each node, 0 for none; empty: as the inventory says", "")...)
	return m.withCheck(nodes, slices.Concat(words, []string{"--submit", "--"}, script))
}

func onSlurm(m *menu) plan {
	words := append([]string{"launch", "slurm", "--nodes", m.askNumber("Nodes", "1", 1)}, m.askGPUs("GPUs on each node, 0 for none", "8")...)
	words = append(words, m.askPartition()...)
	return plan{commands: [][]string{slices.Concat(words, []string{"--submit", "--"}, m.askScript())}}
}

func withJAX(m *menu) plan {
	switch m.pickWord("Where", "here", "here", "ssh", "slurm") {
	case "ssh":
		nodes := m.askInventory()
		script := m.askScript()
		words := append([]string{"launch", "jax", "-i", nodes}, m.askGPUs("GPUs on each node, 0 for none", "8")...)
		return m.withCheck(nodes, slices.Concat(words, []string{"--submit", "--"}, script))
	case "slurm":
		words := append([]string{"launch", "jax", "--nodes", m.askNumber("Nodes", "1", 1)}, m.askGPUs("GPUs on each node, 0 for none", "8")...)
		words = append(words, m.askPartition()...)
		words = append(words, "-o", m.askRequired("A folder for the scripts, shared by all nodes", "job"))
		return plan{commands: [][]string{slices.Concat(words, []string{"--submit", "--"}, m.askScript())}}
	}
	script := m.askScript()
	words := append([]string{"launch", "jax", "--form", "manual"}, m.askGPUs("GPUs on this machine, 0 for none", localGPUs())...)
	words = append(words, m.askPython()...)
	return plan{commands: [][]string{slices.Concat(words, []string{"--submit", "--"}, script)}}
}

func elasticJob(m *menu) plan {
	m.talk.Say("The program must load its last checkpoint when it starts: it restarts when a node is lost.")
	where := m.pickWord("Where", "ssh", "ssh", "slurm")
	nodes := ""
	if where == "ssh" {
		nodes = m.askInventory()
	}
	least := m.askNumber("Minimum number of nodes", "1", 1)
	most := m.askNumber("Maximum number of nodes", "2", numberOf(least))
	script := m.askScript()
	if where == "slurm" {
		words := append([]string{"launch", "slurm", "--nodes", least + ":" + most}, m.askGPUs("GPUs on each node, 0 for none", "8")...)
		words = append(words, m.askPartition()...)
		return plan{commands: [][]string{slices.Concat(words, []string{"--submit", "--"}, script)}}
	}
	words := append([]string{"launch", "torchrun", "-i", nodes, "--nodes", least + ":" + most}, m.askGPUs("GPUs on each node, 0 for none; empty: as the inventory says", "")...)
	return m.withCheck(nodes, slices.Concat(words, []string{"--submit", "--"}, script))
}

// troubleMenu offers the symptoms of docs/troubleshooting.md, by the command that finds the
// cause.
func troubleMenu(m *menu) plan {
	return m.chooseBranch("What do you see?", []branch{
		{"the job hangs or times out", func(m *menu) plan { return plan{commands: [][]string{{"check", m.askInventory()}}} }},
		{"address already in use", func(m *menu) plan { return plan{commands: [][]string{{"check", m.askInventory()}}} }},
		{"data or files are missing on a node, or a disk is full", func(m *menu) plan {
			nodes := m.askInventory()
			return plan{commands: [][]string{{"check", nodes, "--data", m.askRequired("The path of the data on every node", "")}}}
		}},
		{"a Python module or name is missing, or versions differ", func(m *menu) plan { return plan{commands: [][]string{{"verify", m.askInventory()}}} }},
		{"my launch script does something else", func(m *menu) plan {
			return plan{commands: [][]string{{"launch", "lint", m.askRequired("The script", "")}}}
		}},
		{"out of memory", func(*menu) plan { return plan{advice: outOfMemory} }},
		{"a Slurm job does not start", func(*menu) plan { return plan{advice: slurmWaits, commands: [][]string{{"nodes", "slurm:"}}} }},
	})
}

// Advice for problems that no command of dsbuild can examine.
const (
	outOfMemory = `Try in this order: a smaller micro batch with more accumulation (same batch size),
bf16, gradient checkpointing, ZeRO-2 and then ZeRO-3, offload to the CPU, to NVMe:
  dsbuild launch deepspeed --zero 3 --offload cpu -- train.py
With JAX: --mem-fraction 0.8. More in docs/troubleshooting.md.`
	slurmWaits = `  squeue --me --start                 why the job waits, and when it may start
  scontrol show job ID                what the job requests
  scancel ID                          cancel the job
The nodes of Slurm:`
)

// withCheck puts a check of the nodes before a job, if the user wants one.
func (m *menu) withCheck(nodes string, words []string) plan {
	if m.askYesNo("Check the nodes first", "y") {
		return plan{commands: [][]string{{"check", nodes}, words}}
	}
	return plan{commands: [][]string{words}}
}

// askText asks a question, unless an earlier one had no answer.
func (m *menu) askText(question, usual string, check func(string) error) string {
	if m.err != nil {
		return ""
	}
	var answer string
	answer, m.err = m.talk.Ask(m.ctx, question, usual, check)
	return answer
}

// chooseBranch lets the user choose an entry, and continues with its questions.
func (m *menu) chooseBranch(question string, all []branch) plan {
	if m.err != nil {
		return plan{}
	}
	m.talk.Say(question)
	for i, b := range all {
		m.talk.Say(fmt.Sprintf("  %d  %s", i+1, b.title))
	}
	answer := m.askText("A number", "", func(s string) error {
		if n, err := strconv.Atoi(s); err != nil || n < 1 || n > len(all) {
			return fmt.Errorf("enter a number from 1 to %d", len(all))
		}
		return nil
	})
	if m.err != nil {
		return plan{}
	}
	return all[numberOf(answer)-1].ask(m)
}

// numberOf returns an answer that was already checked as a number; 1 without an answer.
func numberOf(answer string) int {
	n, err := strconv.Atoi(answer)
	if err != nil {
		return 1
	}
	return n
}

func (m *menu) pickWord(question, usual string, words ...string) string {
	return m.askText(question+" ("+strings.Join(words, ", ")+")", usual, func(s string) error {
		if !slices.Contains(words, s) {
			return fmt.Errorf("enter one of: %s", strings.Join(words, ", "))
		}
		return nil
	})
}

func (m *menu) askYesNo(question, usual string) bool {
	answer := m.askText(question+" (y, n)", usual, func(s string) error {
		if !slices.Contains([]string{"y", "yes", "n", "no"}, strings.ToLower(s)) {
			return errors.New("enter y or n")
		}
		return nil
	})
	return m.err == nil && strings.HasPrefix(strings.ToLower(answer), "y")
}

func (m *menu) askNumber(question, usual string, least int) string {
	return m.askText(question, usual, func(s string) error {
		if n, err := strconv.Atoi(s); err != nil || n < least || strconv.Itoa(n) != s {
			return fmt.Errorf("enter a number, %d or more", least)
		}
		return nil
	})
}

func (m *menu) askRequired(question, usual string) string {
	return m.askText(question, usual, func(s string) error {
		if s == "" || strings.HasPrefix(s, "-") {
			return errors.New("enter a name")
		}
		return nil
	})
}

// askInventory asks for the nodes.
func (m *menu) askInventory() string {
	return m.askRequired("The nodes: an inventory, a hostfile, or names such as gpu[01-04]", "inventory.yaml")
}

// askGPUs asks for the number of GPUs of a machine; 0 means one process on the CPU.
func (m *menu) askGPUs(question, usual string) []string {
	answer := m.askText(question, usual, func(s string) error {
		if n, err := strconv.Atoi(s); (s != "" || usual != "") && (err != nil || n < 0 || n > 64) {
			return errors.New("enter a number from 0 to 64")
		}
		return nil
	})
	if answer == "" {
		return nil
	}
	return []string{"--gpus", answer}
}

func (m *menu) askPartition() []string {
	return m.askOptional("--partition", "The partition; empty: the cluster's default")
}

func (m *menu) askPython() []string {
	return m.askOptional("--python", "The Python of the environment; empty: the one on PATH")
}

// askOptional asks for the value of an optional flag.
func (m *menu) askOptional(flag, question string) []string {
	answer := m.askText(question, "", func(s string) error {
		if strings.HasPrefix(s, "-") {
			return errors.New("enter a name")
		}
		return nil
	})
	if answer == "" {
		return nil
	}
	return []string{flag, answer}
}

// askScript asks for the program and its arguments, in the form of a command line.
func (m *menu) askScript() []string {
	answer := m.askText("The program and its arguments", "", func(s string) error {
		words, err := shellWords(s)
		switch {
		case err != nil:
			return err
		case len(words) == 0 || strings.HasPrefix(words[0], "-"):
			return errors.New("enter a Python file, as in: train.py --epochs 3")
		}
		return nil
	})
	words, err := shellWords(answer)
	m.err = cmp.Or(m.err, err)
	return words
}

// shellWords splits a line into words as a shell does. It refuses expansions: they would happen
// here, and not on the machine on which the program runs.
func shellWords(s string) ([]string, error) {
	var words []*syntax.Word
	for word, err := range syntax.NewParser().WordsSeq(strings.NewReader(s)) {
		if err != nil {
			return nil, err
		}
		words = append(words, word)
	}
	fields, err := expand.Fields(&expand.Config{Env: expand.ListEnviron(), NoUnset: true}, words...)
	if err != nil {
		return nil, fmt.Errorf("%w; put it in single quotes to pass it unchanged", err)
	}
	return fields, nil
}

// shellLine returns a command of dsbuild as a user can type it.
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
	count := 0
	for line := range strings.Lines(string(out)) { // GPU 0: NVIDIA A100 (UUID: …)
		if strings.HasPrefix(line, "GPU ") {
			count++
		}
	}
	return strconv.Itoa(count)
}
