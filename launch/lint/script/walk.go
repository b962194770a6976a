package script

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

func readScript(file []byte, src *source, parsed *syntax.File, unfilled [][]int) *Script {
	text := string(file)
	s := &Script{
		Shebang: strings.Index("\n"+text, "\n#!"), CarriageReturn: strings.Index(text+"\n", "\r\n"),
		Text: file, Unfilled: unfilled, End: len(text),
	}
	s.Directives, s.Late = findDirectives(text)
	options := newSlurmOptions(true)
	for _, d := range s.Directives {
		found, rest, _ := options.parseOptions(d.Words)
		for _, w := range d.Words {
			for _, c := range w.Chars {
				if c.Ref != nil && strings.HasPrefix(c.Ref.text, "<") {
					s.Unfilled = append(s.Unfilled, []int{c.At, c.At + len(c.Ref.text)})
				}
			}
		}
		s.Heterogeneous = s.Heterogeneous || len(rest) > 0 && slices.Contains([]string{"hetjob", "packjob"}, rest[0].Text())
		if len(rest) > 0 && !s.Heterogeneous {
			s.Extra = append(s.Extra, rest[0])
		}
		if !s.Heterogeneous {
			s.Batch = append(s.Batch, found...)
		}
	}
	sh := &shell{
		script:    s,
		src:       src,
		env:       &environment{vars: map[string]*variable{}},
		functions: new([]*function),
		budget:    &budget{},
	}
	sh.recordComments(parsed)
	for _, w := range exportedVariables(s.Batch) {
		name, value, _ := w.Cut('=')
		sh.setVariable(sh.newAssignment(name.Text(), value, w.At), true)
	}
	sh.runStatements(parsed.Stmts)
	sh.InFunction, sh.Branch = true, true
	for i := 0; i < len(*sh.functions); i++ { // a body may declare further functions
		f, sub := (*sh.functions)[i], sh.newSubshell()
		sub.src = f.src
		for name := range sub.env.vars {
			sub.forget(name)
		}
		sub.runStatement(f.body)
	}
	return s
}

// recordComments records the comments, and the backslashes that continue no line.
func (sh *shell) recordComments(file *syntax.File) {
	syntax.Walk(file, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.Comment:
			sh.script.Comments = append(sh.script.Comments, Comment{sh.src.placeOf(n.Hash), n.Text})
		case *syntax.CallExpr:
			for i, arg := range n.Args {
				text := arg.Lit()
				if strings.HasPrefix(text, `\ #`) || i == len(n.Args)-1 && (text == `\ ` || text == "\\\t") {
					sh.script.Blanks = append(sh.script.Blanks, sh.src.placeOf(arg.Pos()))
				}
			}
		}
		return true
	})
}

func (sh *shell) runStatements(list []*syntax.Stmt) {
	for _, s := range list {
		sh.runStatement(s)
	}
}

// runStatement follows a statement in the order of a shell. It takes each branch and each loop once.
func (sh *shell) runStatement(s *syntax.Stmt) {
	if s == nil || s.Cmd == nil || !sh.enterLevel() {
		if s != nil && sh.budget.isSpent() {
			sh.script.End = min(sh.script.End, sh.src.placeOf(s.Pos()))
		}
		return
	}
	defer sh.leaveLevel()
	if s.Background { // its assignments do not reach this shell
		sh = sh.newSubshell()
		sh.Background = true
	}
	switch c := s.Cmd.(type) {
	case *syntax.CallExpr:
		sh.runSimpleCommand(c, s.Redirs)
	case *syntax.DeclClause:
		sh.runDeclaration(c)
	case *syntax.BinaryCmd:
		sh.runBinary(c)
	case *syntax.FuncDecl:
		if c.Name != nil {
			names := bareNames(sh.src.between(c.Body.Pos(), c.Body.End()))
			f := &function{name: c.Name.Value, body: c.Body, src: sh.src, names: names}
			sh.budget.chars += len(f.names)
			*sh.functions = append(*sh.functions, f)
		}
	default:
		sh.runCompound(s.Cmd)
	}
}

func (sh *shell) runCompound(cmd syntax.Command) {
	switch c := cmd.(type) {
	case *syntax.Block:
		sh.runStatements(c.Stmts)
	case *syntax.Subshell:
		sh.newSubshell().runStatements(c.Stmts)
	case *syntax.IfClause:
		sh.runIf(c)
	case *syntax.WhileClause:
		sh.runLoop(c.Cond, c.Do)
	case *syntax.ForClause:
		if iter, ok := c.Loop.(*syntax.WordIter); ok {
			sh.assignUnknown(sh.src.placeOf(iter.Name.Pos()), iter.Name.Value)
		} else {
			sh.assignUnknown(sh.src.placeOf(c.Pos()), sh.assignedNames(c.Loop)...)
		}
		sh.runLoop(nil, c.Do)
	case *syntax.CaseClause:
		sh.runCase(c)
	case *syntax.TimeClause:
		sh.runStatement(c.Stmt)
	case *syntax.CoprocClause:
		sh.newSubshell().runStatement(c.Stmt)
	case *syntax.TestDecl:
		sh.runStatement(c.Body)
	case *syntax.ArithmCmd, *syntax.LetClause, *syntax.TestClause:
		sh.assignUnknown(sh.src.placeOf(c.Pos()), sh.assignedNames(c)...)
	}
}

func markTest(s *Situation) { s.Test = true }

// guarded calls do for a part of the script that runs only under a condition.
func (sh *shell) guarded(condition []byte, branch bool, do func()) {
	sh.withSituation(func(s *Situation) {
		s.Branch = s.Branch || branch
		if len(s.Guards) < maxGuards {
			s.Guards = append(slices.Clip(s.Guards), string(condition[:min(len(condition), maxRef)]))
		}
	}, do)
}

// runIf follows if, elif and else.
func (sh *shell) runIf(c *syntax.IfClause) {
	before := sh.env
	var ends []*environment
	var conditions []byte // of this branch and those before it
	for ; c != nil; c = c.Else {
		if len(c.Cond) > 0 {
			conditions = slices.Concat(conditions, sh.src.between(c.Position, c.ThenPos))
			sh.withSituation(markTest, func() { sh.runStatements(c.Cond) })
		}
		base := sh.env
		sh.env = sh.copyEnvironment()
		sh.guarded(conditions, true, func() { sh.runStatements(c.Then) })
		ends = append(ends, sh.env)
		sh.env = base
		if c.Else == nil && len(c.Cond) > 0 {
			ends = append(ends, sh.copyEnvironment()) // no branch ran
		}
	}
	sh.env = before
	sh.mergeBranches(ends...)
}

// runLoop follows a loop once. Its variables are unknown afterwards.
func (sh *shell) runLoop(condition, body []*syntax.Stmt) {
	sh.withSituation(func(s *Situation) { s.Test, s.Loop = true, true }, func() { sh.runStatements(condition) })
	never := sh.copyEnvironment()
	// From the second iteration on they hold values of the previous one.
	for _, s := range body {
		sh.forget(sh.assignedNames(s)...)
	}
	sh.withSituation(func(s *Situation) { s.Loop = true }, func() { sh.runStatements(body) })
	sh.mergeBranches(sh.copyEnvironment(), never)
}

func (sh *shell) runCase(c *syntax.CaseClause) {
	sh.expandWord(c.Word, true) // ${NAME:=x}
	asked := sh.src.between(c.Word.Pos(), c.Word.End())
	ends := []*environment{sh.copyEnvironment()}
	for _, item := range c.Items {
		base := sh.env
		sh.env = sh.copyEnvironment()
		sh.guarded(asked, true, func() { sh.runStatements(item.Stmts) })
		ends = append(ends, sh.env)
		sh.env = base
	}
	sh.mergeBranches(ends...)
}

func (sh *shell) runBinary(c *syntax.BinaryCmd) {
	switch c.Op {
	case syntax.AndStmt:
		sh.runStatement(c.X)
		if !isCondition(c.X) {
			sh.runStatement(c.Y)
			return
		}
		never := sh.copyEnvironment()
		sh.guarded(sh.src.between(c.X.Pos(), c.X.End()), false, func() { sh.runStatement(c.Y) })
		sh.mergeBranches(sh.copyEnvironment(), never)
	case syntax.OrStmt:
		sh.withSituation(markTest, func() { sh.runStatement(c.X) })
		never := sh.copyEnvironment()
		sh.guarded(sh.src.between(c.X.Pos(), c.X.End()), true, func() { sh.runStatement(c.Y) })
		sh.mergeBranches(sh.copyEnvironment(), never)
	default: // a pipeline
		from := sh.newSubshell()
		from.Piped = true
		from.runStatement(c.X)
		sh.newSubshell().runStatement(c.Y)
	}
}

// isCondition reports whether a statement is a test, so that a command after && may not run:
// [ -n "$X" ] && Y=1. Other commands, such as cd, are expected to succeed.
func isCondition(s *syntax.Stmt) bool {
	switch c := s.Cmd.(type) {
	case *syntax.TestClause, *syntax.ArithmCmd, *syntax.LetClause:
		return true
	case *syntax.BinaryCmd:
		return isCondition(c.Y)
	case *syntax.CallExpr:
		return len(c.Args) > 0 && slices.Contains([]string{
			"[", "test", "false", "grep", "command", "type", "which", "hash",
		}, c.Args[0].Lit())
	}
	return false
}

// runDeclaration follows export, declare, local, readonly and typeset.
func (sh *shell) runDeclaration(c *syntax.DeclClause) {
	export, edited := c.Variant.Value == "export", false
	sh.budget.chars += len(c.Args)
	declare := func(name string, made *Assignment) {
		switch {
		case made != nil:
			sh.setVariable(made, export)
			if edited {
				sh.forget(name)
				sh.assignNamed(made.Value) // declare -n NAME=OTHER
			}
		case export:
			sh.exportVariable(name)
		}
	}
	for _, a := range c.Args {
		if a.Name != nil {
			var made *Assignment
			if !a.Naked {
				made = sh.evalAssignment(a)
			}
			declare(a.Name.Value, made)
			continue
		}
		for _, w := range sh.expandFields([]*syntax.Word{a.Value}) {
			if option, _ := w.Literal(); strings.HasPrefix(option, "-") {
				if export && strings.Contains(option, "n") {
					return
				}
				export = export || strings.Contains(option, "x")
				edited = edited || strings.ContainsAny(option, "cilnu")
				continue
			}
			// "NAME=value", or words from a variable or a command.
			before, value, sets := w.Cut('=')
			switch name, known := before.Literal(); {
			case !known || !syntax.ValidName(name):
				sh.assignAny(w)
			case sets:
				declare(name, sh.newAssignment(name, value, w.At))
			default:
				declare(name, nil)
			}
		}
	}
}

// runSimpleCommand follows a simple command: assignments, or a program.
func (sh *shell) runSimpleCommand(c *syntax.CallExpr, redirects []*syntax.Redirect) {
	words := sh.expandFields(c.Args)
	if len(words) == 0 {
		for _, a := range c.Assigns {
			sh.setVariable(sh.evalAssignment(a), false)
		}
		return
	}
	cmd := sh.newCommand(words)
	for _, a := range c.Assigns {
		made := sh.evalAssignment(a)
		made.Exported = made.Seq
		cmd.Env = append(cmd.Env, made)
	}
	for _, r := range redirects {
		if r.Hdoc != nil { // its text is not read, but it may hold ${NAME:=x}
			sh.assignUnknown(sh.src.placeOf(r.Pos()), sh.assignedNames(r.Hdoc)...)
		}
		cmd.Redirects = append(cmd.Redirects, sh.expandValue(r.Word))
	}
	sh.runCommand(cmd)
}

// runCommand records a command, and follows its effect on the shell and the programs that it starts.
func (sh *shell) runCommand(cmd *Command) {
	if sh.budget.isSpent() {
		return
	}
	sh.script.Commands = append(sh.script.Commands, cmd)
	name := cmd.Arg(0)
	called := false
	for _, f := range *sh.functions {
		sh.budget.chars++
		if f.name == name {
			called = true
			sh.forget(f.names...)
		}
	}
	switch {
	case called:
		for _, w := range cmd.Words[1:] { // local -n RESULT=$1
			sh.forget(w.Text())
		}
	case !sh.runBuiltin(name, cmd):
		sh.startProgram(cmd)
	}
}

// runBuiltin follows a builtin that changes the shell's state. It returns false for other commands.
func (sh *shell) runBuiltin(name string, cmd *Command) bool {
	switch arguments := cmd.Words[1:]; name {
	case "unset":
		for _, w := range withoutOptions(arguments, "") {
			n, known := w.Literal()
			array, _, element := strings.Cut(n, "[")
			switch {
			case !known:
				sh.assignAny(w)
			case element:
				sh.forget(array)
			default:
				sh.env.vars[n] = &variable{unset: true}
			}
		}
	case "set":
		for i, w := range arguments { // set -a, set -o allexport
			switch option := w.Text(); {
			case option == "allexport" && i > 0:
				sh.env.exportAll = arguments[i-1].HasPrefix("-")
			case strings.HasPrefix(option, "-") && strings.Contains(option, "a"):
				sh.env.exportAll = true
			case strings.HasPrefix(option, "+") && strings.Contains(option, "a"):
				sh.env.exportAll = false
			}
		}
	case "getopts":
		sh.assignUnknown(cmd.At, "OPTARG", cmd.Arg(2))
	case "read":
		sh.assignNamed(withoutOptions(arguments, "dinNptu")...)
	case "mapfile", "readarray":
		sh.assignNamed(withoutOptions(arguments, "dnOsucC")...)
	case "printf":
		if cmd.Arg(1) == "-v" && len(arguments) > 1 {
			sh.assignNamed(arguments[1])
		}
	case "source", ".":
		sh.script.Unread = append(sh.script.Unread, arguments[:min(1, len(arguments))]...)
	case "eval":
		for _, w := range arguments {
			sh.forget(bareNames([]byte(w.Text()))...)
		}
		sh.script.Unread = append(sh.script.Unread, arguments[:min(1, len(arguments))]...)
	default:
		return false
	}
	return true
}

// withoutOptions skips options; values are the short ones whose value may be the next word.
func withoutOptions(words []Word, values string) []Word {
	for i := 0; i < len(words); i++ {
		text := words[i].Text()
		switch {
		case text == "--":
			return words[i+1:]
		case !strings.HasPrefix(text, "-") || text == "-":
			return words[i:]
		case len(text) > 1 && strings.IndexAny(text, values) == len(text)-1:
			i++
		}
	}
	return nil
}
