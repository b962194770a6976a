package main

// helpWidth is the width of the help, in columns.
const helpWidth = 80

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
