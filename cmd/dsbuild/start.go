package main

import (
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

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
)

func newStartCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "start",
		Short: "Choose and run a command interactively",
		Long: `Choose and run a command interactively.

A few questions lead to a command that runs a training job on this machine, over
SSH or on a Slurm cluster, or to the diagnosis of a failing job. Nothing runs
before you confirm the command.

Answers are read from standard input, one per line; an empty line accepts the
default in brackets. Without a terminal, invalid and missing answers are usage
errors (exit code 2).`,
		Example: `  # Answer the questions in a terminal, or from a pipe
  $ dsbuild start
  $ printf '1\ntrain.py --epochs 3\n4\n\ny\n' | dsbuild start`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runStart(cmd.Context(), a) },
	}
}

func runStart(ctx context.Context, a *app) error {
	m := &menu{ctx: ctx, talk: ui.NewDialogue(a.stdin, a.stderr)}
	p := m.chooseBranch([]branch{
		{"run a job on this machine", func(m *menu) outcome { return m.jobHere("launch", "torchrun") }},
		{"run a job on several machines, over SSH", overSSH},
		{"run a job on a Slurm cluster", onSlurm},
		{"run a JAX program", withJAX},
		{"run an elastic job, which survives the loss of a node", elasticJob},
		{"find out why a job fails", func(*menu) outcome { return outcome{advice: troubled} }},
	})
	if m.err == nil && p.advice != "" {
		m.talk.Say(p.advice)
	}
	run := false
	if m.err == nil && len(p.commands) > 0 {
		m.talk.Say("\nThe command:\n")
		for _, words := range p.commands {
			m.talk.Say("  dsbuild " + strings.Join(lists.Map(words, remote.Word), " "))
		}
		m.talk.Say("")
		run = m.askYesNo("Run it now?")
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case m.err != nil:
		return fault.WithHint(usagef("%w", m.err),
			"write one answer per line; to see the questions, run 'dsbuild start' in a terminal")
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

// menu is a conversation that ends in commands.
type menu struct {
	ctx  context.Context
	talk *ui.Dialogue
	err  error // the first error, after which the menu asks no more questions
}

// outcome is the result of a conversation.
type outcome struct {
	commands [][]string // of dsbuild, to run in order
	advice   string
}

// branch is an entry of a menu.
type branch struct {
	title string
	ask   func(*menu) outcome
}

// The questions about GPUs.
const (
	gpusHere    = "Number of GPUs on this machine (0 to use the CPU)"
	gpusOfNodes = "Number of GPUs per node (0 to use the CPU)"
	gpusListed  = gpusOfNodes + "; empty for the number in the inventory"
)

// jobWords completes the arguments of dsbuild launch for a job that starts immediately.
func jobWords(words, script []string) []string {
	return slices.Concat(words, []string{"--submit", "--"}, script)
}

// jobHere asks for the rest of a job on this machine.
func (m *menu) jobHere(words ...string) outcome {
	script := m.askScript()
	words = append(words, m.askGPUs(gpusHere, localGPUs())...)
	words = append(words, m.askOptional("--python", "Python interpreter; empty for python on PATH")...)
	return outcome{commands: [][]string{jobWords(words, script)}}
}

func overSSH(m *menu) outcome {
	nodes := m.askInventory()
	script := m.askScript()
	words := append([]string{"launch", "torchrun", "-i", nodes}, m.askGPUs(gpusListed, "")...)
	return m.withCheck(nodes, jobWords(words, script))
}

func onSlurm(m *menu) outcome {
	words := m.askSlurm("launch", "slurm", "--nodes", m.askNumber("Number of nodes", "1", 1))
	return outcome{commands: [][]string{jobWords(words, m.askScript())}}
}

func withJAX(m *menu) outcome {
	switch m.pickWord("Where", "here", "here", "ssh", "slurm") {
	case "ssh":
		nodes := m.askInventory()
		script := m.askScript()
		words := append([]string{"launch", "jax", "-i", nodes}, m.askGPUs(gpusOfNodes, "8")...)
		return m.withCheck(nodes, jobWords(words, script))
	case "slurm":
		words := m.askSlurm("launch", "jax", "--nodes", m.askNumber("Number of nodes", "1", 1))
		words = append(words, "-o", m.askName("Directory for the scripts, shared by all nodes", "job"))
		return outcome{commands: [][]string{jobWords(words, m.askScript())}}
	}
	return m.jobHere("launch", "jax", "--form", "manual")
}

func elasticJob(m *menu) outcome {
	m.talk.Say("The job restarts when a node is lost, so the program must load its last checkpoint at startup.")
	where := m.pickWord("Where", "ssh", "ssh", "slurm")
	nodes := ""
	if where == "ssh" {
		nodes = m.askInventory()
	}
	least := m.askNumber("Minimum number of nodes", "1", 1)
	most := m.askNumber("Maximum number of nodes", "2", numberOf(least))
	script := m.askScript()
	if where == "slurm" {
		words := m.askSlurm("launch", "slurm", "--nodes", least+":"+most)
		return outcome{commands: [][]string{jobWords(words, script)}}
	}
	words := []string{"launch", "torchrun", "-i", nodes, "--nodes", least + ":" + most}
	words = append(words, m.askGPUs(gpusListed, "")...)
	return m.withCheck(nodes, jobWords(words, script))
}

// troubled lists the command that diagnoses each symptom.
const troubled = `  dsbuild why LOGS                    the first cause in a failed job's logs
  dsbuild check INVENTORY             hangs, timeouts, ports in use, missing data, full disks
  dsbuild verify INVENTORY            missing modules or different versions on some nodes
  dsbuild launch lint SCRIPT          problems in a launch script
  squeue --me --start                 why a Slurm job waits, and when it may start
Out of memory: use a smaller micro batch with more accumulation steps, bf16, gradient checkpointing,
ZeRO-2, ZeRO-3 or offloading: dsbuild launch torchrun --zero 3 --offload cpu -- train.py
For more, see docs/troubleshooting.md.`

// withCheck puts a check of the nodes before a job, if the user wants one.
func (m *menu) withCheck(nodes string, words []string) outcome {
	if m.askYesNo("Check the nodes first?") {
		return outcome{commands: [][]string{{"check", nodes}, words}}
	}
	return outcome{commands: [][]string{words}}
}

// ask asks a question until the answer is valid, unless an earlier question had no answer. Invalid answers get the
// message invalid.
func (m *menu) ask(question, usual, invalid string, valid func(string) bool) string {
	if m.err != nil {
		return ""
	}
	var answer string
	answer, m.err = m.talk.Ask(m.ctx, question, usual, func(s string) error {
		if !valid(s) {
			return errors.New(invalid)
		}
		return nil
	})
	return answer
}

// chooseBranch lets the user choose an entry, and continues with its questions.
func (m *menu) chooseBranch(all []branch) outcome {
	if m.err != nil {
		return outcome{}
	}
	m.talk.Say("What do you want to do?")
	for i, b := range all {
		m.talk.Say(fmt.Sprintf("  %d  %s", i+1, b.title))
	}
	answer := m.ask("Number", "", fmt.Sprintf("enter a number from 1 to %d", len(all)), func(s string) bool {
		n, err := strconv.Atoi(s)
		return err == nil && n >= 1 && n <= len(all)
	})
	if m.err != nil {
		return outcome{}
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
	list := strings.Join(words, ", ")
	known := func(s string) bool { return slices.Contains(words, s) }
	return m.ask(question+" ("+list+")", usual, "enter one of: "+list, known)
}

func (m *menu) askYesNo(question string) bool {
	answer := m.ask(question+" (y, n)", "y", "enter y or n", func(s string) bool {
		return slices.Contains([]string{"y", "yes", "n", "no"}, strings.ToLower(s))
	})
	return m.err == nil && strings.HasPrefix(strings.ToLower(answer), "y")
}

func (m *menu) askNumber(question, usual string, least int) string {
	return m.ask(question, usual, fmt.Sprintf("enter a number of %d or more", least), func(s string) bool {
		n, err := strconv.Atoi(s)
		return err == nil && n >= least && strconv.Itoa(n) == s
	})
}

func (m *menu) askName(question, usual string) string {
	return m.ask(question, usual, "enter a name", func(s string) bool { return s != "" && !strings.HasPrefix(s, "-") })
}

func (m *menu) askInventory() string {
	return m.askName("Inventory, hostfile, or node names such as gpu[01-04]", "inventory.yaml")
}

// askGPUs asks for the number of GPUs of a machine. Zero means one process on the CPU.
func (m *menu) askGPUs(question, usual string) []string {
	answer := m.ask(question, usual, "enter a number from 0 to 64", func(s string) bool {
		n, err := strconv.Atoi(s)
		return s == "" && usual == "" || err == nil && n >= 0 && n <= 64
	})
	if answer == "" {
		return nil
	}
	return []string{"--gpus", answer}
}

// askSlurm adds the GPUs and the partition of a job that Slurm starts.
func (m *menu) askSlurm(words ...string) []string {
	words = append(words, m.askGPUs(gpusOfNodes, "8")...)
	return append(words, m.askOptional("--partition", "Partition; empty for the cluster's default")...)
}

// askOptional asks for the value of an optional flag.
func (m *menu) askOptional(flag, question string) []string {
	answer := m.ask(question, "", "enter a name", func(s string) bool { return !strings.HasPrefix(s, "-") })
	if answer == "" {
		return nil
	}
	return []string{flag, answer}
}

// askScript asks for the program and its arguments, in the form of a command line.
func (m *menu) askScript() []string {
	if m.err != nil {
		return nil
	}
	var words []string
	_, m.err = m.talk.Ask(m.ctx, "Program and arguments", "", func(s string) (err error) {
		if words, err = shellWords(s); err == nil && (len(words) == 0 || strings.HasPrefix(words[0], "-")) {
			err = errors.New("enter a Python file and its arguments, such as train.py --epochs 3")
		}
		return err
	})
	return words
}

// shellWords splits a line into words as a shell does. It rejects expansions, which would happen here and not on the
// machine that runs the program.
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
