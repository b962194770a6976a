package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// helpWidth is the width of the help, in columns.
const helpWidth = 80

// slurmGroup is the annotation of flags that the help lists below the others, because they say how
// Slurm reaches nodes.
const slurmGroup = "dsbuild_slurm"

// The paragraphs that tell commands apart whose names are alike.
const (
	whichCheck = `

Which one? check: are the nodes ready for a job. verify: do the nodes run the
same. verify-wheel: does the file of a wheel match its metadata. inspect: the
content of any wheel.`
	whichDeploy = `

Which one? deploy installs wheels that exist. ship first builds those that the
nodes need. env gives bare nodes a whole environment, torch included.`
)

func init() { cobra.AddTemplateFunc("helpOfFlags", helpOfFlags) } // of the template of all helps

// helpOfFlags is the list of flags in a help, those for Slurm last.
func helpOfFlags(all *pflag.FlagSet) string {
	var usual, slurm pflag.FlagSet
	all.VisitAll(func(f *pflag.Flag) {
		if f.Annotations[slurmGroup] != nil {
			slurm.AddFlag(f)
		} else {
			usual.AddFlag(f)
		}
	})
	text := usual.FlagUsagesWrapped(helpWidth)
	if slurm.HasFlags() {
		text += "\nFlags for nodes that Slurm reaches (--via slurm):\n" + slurm.FlagUsagesWrapped(helpWidth)
	}
	return text
}
