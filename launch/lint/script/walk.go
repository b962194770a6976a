package script

import (
	"maps"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// interpreter follows the statements of a source in the order of a shell. It takes each
// branch and each loop once.
type interpreter struct{ *shell }

// readScript follows a whole script: a file, or a here-document.
func readScript(src *source, file *syntax.File, b *budget) *Script {
	// The lines of the text, each as one word.
	var lines []Word
	start := 0
	for i := 0; i <= len(src.text); i++ {
		if i < len(src.text) && src.text[i] != '\n' {
			continue
		}
		line := Word{At: src.placeOfByte(start), Chars: make([]Char, 0, i-start)}
		for j := start; j < i; j++ {
			line.Chars = append(line.Chars, src.charAt(j))
		}
		lines = append(lines, line)
		start = i + 1
	}
	s := &Script{Start: lines[0].At, Shebang: -1, CarriageReturn: -1}
	s.Directives, s.Late = findDirectives(lines)
	for _, line := range lines {
		if s.Shebang < 0 && line.HasPrefix("#!") {
			s.Shebang = line.At
		}
		if last := len(line.Chars) - 1; s.CarriageReturn < 0 && last >= 0 && line.Chars[last].Byte == '\r' {
			s.CarriageReturn = line.Chars[last].At
		}
	}
	options := newSlurmOptions(true)
	for _, d := range s.Directives {
		found, rest, _ := options.parseOptions(d.Words)
		s.Heterogeneous = s.Heterogeneous || len(rest) > 0 && slices.Contains([]string{"hetjob", "packjob"}, rest[0].Text())
		if !s.Heterogeneous {
			s.Batch = append(s.Batch, found...)
		}
	}
	in := interpreter{&shell{script: s, src: src, env: newEnvironment(), functions: map[string]*function{}, files: map[string]Word{}, budget: b}}
	in.recordComments(file)
	for _, w := range exportedVariables(s.Batch) {
		name, value, _ := w.Cut('=')
		in.setVariable(in.newAssignment(name.Text(), value, w.At), true)
	}
	in.runStatements(file.Stmts)
	for _, name := range slices.Sorted(maps.Keys(in.functions)) {
		if f := in.functions[name]; !f.called {
			in.uncalled = true
			in.callFunction(f, &Command{})
		}
	}
	return s
}

// recordComments records the comments, and the backslashes that continue no line.
func (in interpreter) recordComments(file *syntax.File) {
	syntax.Walk(file, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.Comment:
			in.script.Comments = append(in.script.Comments, Comment{in.src.placeOf(n.Hash), n.Text})
		case *syntax.CallExpr:
			for i, arg := range n.Args {
				text := arg.Lit()
				if strings.HasPrefix(text, `\ #`) || i == len(n.Args)-1 && (text == `\ ` || text == "\\\t") {
					in.script.Blanks = append(in.script.Blanks, in.src.placeOf(arg.Pos()))
				}
			}
		}
		return true
	})
}

func (in interpreter) runStatements(list []*syntax.Stmt) {
	for _, s := range list {
		in.runStatement(s)
	}
}

func (in interpreter) runStatement(s *syntax.Stmt) {
	if s == nil || s.Cmd == nil || !in.enterLevel() {
		return
	}
	defer in.leaveLevel()
	if s.Background { // its assignments do not reach this shell
		in = interpreter{in.newSubshell()}
	}
	in.withSituation(func(sit *situation) { sit.background = sit.background || s.Background }, func() {
		switch c := s.Cmd.(type) {
		case *syntax.CallExpr:
			in.runSimpleCommand(c, s.Redirs)
		case *syntax.DeclClause:
			in.runDeclaration(c)
		case *syntax.BinaryCmd:
			in.runBinary(c)
		case *syntax.FuncDecl:
			if c.Name != nil {
				in.functions[c.Name.Value] = &function{body: c.Body, src: in.src}
			}
		default:
			in.runCompound(s.Cmd)
		}
	})
}

func (in interpreter) runCompound(cmd syntax.Command) {
	switch c := cmd.(type) {
	case *syntax.Block:
		in.runStatements(c.Stmts)
	case *syntax.Subshell:
		sub := in.newSubshell()
		interpreter{sub}.runStatements(c.Stmts)
	case *syntax.IfClause:
		in.runIf(c)
	case *syntax.WhileClause:
		in.runLoop(c.Cond, c.Do)
	case *syntax.ForClause:
		if iter, ok := c.Loop.(*syntax.WordIter); ok {
			expander{in.shell}.expandFields(iter.Items)
			in.assignUnknown(in.src.placeOf(iter.Name.Pos()), iter.Name.Value)
		} else {
			in.assignUnknown(in.src.placeOf(c.Pos()), in.assignedNames(c.Loop)...)
		}
		in.runLoop(nil, c.Do)
	case *syntax.CaseClause:
		in.runCase(c)
	case *syntax.TimeClause:
		in.runStatement(c.Stmt)
	case *syntax.CoprocClause:
		interpreter{in.newSubshell()}.runStatement(c.Stmt)
	case *syntax.TestDecl:
		in.runStatement(c.Body)
	case *syntax.ArithmCmd, *syntax.LetClause, *syntax.TestClause:
		in.assignUnknown(in.src.placeOf(c.Pos()), in.assignedNames(c)...)
		syntax.Walk(c, func(n syntax.Node) bool {
			output, found := n.(*syntax.CmdSubst)
			if found {
				expander{in.shell}.commandOutput(output.Stmts)
			}
			return !found
		})
	}
}

func markTest(sit *situation) { sit.test = true }

func markLoop(sit *situation) { sit.loop = true }

// variablesIn returns the variables that a condition asks for.
func (in interpreter) variablesIn(condition syntax.Node) []string {
	var names []string
	syntax.Walk(condition, func(n syntax.Node) bool {
		in.budget.chars++
		name := ""
		switch n := n.(type) {
		case *syntax.ParamExp:
			if n.Param != nil {
				name = n.Param.Value
			}
		case *syntax.Lit: // [ -v SLURM_JOB_ID ], printenv SLURM_JOB_ID
			if strings.HasPrefix(n.Value, "SLURM_") {
				name = n.Value
			}
		}
		if name != "" && len(names) < maxUses {
			names = append(names, name)
		}
		return true
	})
	return names
}

// addGuards notes the variables that decide whether a part of the script runs.
func (sit *situation) addGuards(names []string) {
	if len(sit.guards) < maxUses {
		sit.guards = slices.Concat(sit.guards, names)
	}
}

// branchBy marks a branch that these variables decide.
func branchBy(names []string) func(*situation) {
	return func(sit *situation) {
		sit.branch = true
		sit.addGuards(names)
	}
}

// runIf follows if, elif and else.
func (in interpreter) runIf(c *syntax.IfClause) {
	before := in.env
	var ends []*environment
	var asked []string
	for ; c != nil; c = c.Else {
		for _, condition := range c.Cond {
			asked = append(asked, in.variablesIn(condition)...)
		}
		if len(c.Cond) > 0 {
			in.withSituation(markTest, func() { in.runStatements(c.Cond) })
		}
		base := in.env
		in.env = in.copyEnvironment()
		in.withSituation(branchBy(asked), func() { in.runStatements(c.Then) })
		ends = append(ends, in.env)
		in.env = base
		if c.Else == nil && len(c.Cond) > 0 {
			ends = append(ends, in.copyEnvironment()) // no branch ran
		}
	}
	in.env = before
	in.env.mergeBranches(ends)
}

// runLoop follows a loop once. Its variables are unknown afterwards.
func (in interpreter) runLoop(condition, body []*syntax.Stmt) {
	in.withSituation(markTest, func() { in.withSituation(markLoop, func() { in.runStatements(condition) }) })
	never := in.copyEnvironment()
	// From the second round on they hold values of the round before.
	for _, s := range body {
		in.forgetVariables(in.assignedNames(s)...)
	}
	in.withSituation(markLoop, func() { in.runStatements(body) })
	in.env.mergeBranches([]*environment{in.copyEnvironment(), never})
}

func (in interpreter) runCase(c *syntax.CaseClause) {
	expander{in.shell}.expandWord(c.Word, inQuotes)
	asked := in.variablesIn(c.Word)
	ends := []*environment{in.copyEnvironment()}
	for _, item := range c.Items {
		base := in.env
		in.env = in.copyEnvironment()
		in.withSituation(branchBy(asked), func() { in.runStatements(item.Stmts) })
		ends = append(ends, in.env)
		in.env = base
	}
	in.env.mergeBranches(ends)
}

func (in interpreter) runBinary(c *syntax.BinaryCmd) {
	switch c.Op {
	case syntax.AndStmt:
		in.runStatement(c.X)
		if !isCondition(c.X) {
			in.runStatement(c.Y)
			return
		}
		never := in.copyEnvironment()
		in.withSituation(func(sit *situation) { sit.addGuards(in.variablesIn(c.X)) }, func() { in.runStatement(c.Y) })
		in.env.mergeBranches([]*environment{in.copyEnvironment(), never})
	case syntax.OrStmt:
		in.withSituation(markTest, func() { in.runStatement(c.X) })
		never := in.copyEnvironment()
		in.withSituation(branchBy(in.variablesIn(c.X)), func() { in.runStatement(c.Y) })
		in.env.mergeBranches([]*environment{in.copyEnvironment(), never})
	default:
		left, right := in.newSubshell(), in.newSubshell()
		interpreter{left}.runStatement(c.X)
		interpreter{right}.runStatement(c.Y)
	}
}

// isCondition reports whether a statement asks something, so that a command behind && may as well
// not run: [ -n "$X" ] && Y=1. Other commands, such as cd, are taken to succeed.
func isCondition(s *syntax.Stmt) bool {
	switch c := s.Cmd.(type) {
	case *syntax.TestClause, *syntax.ArithmCmd, *syntax.LetClause:
		return true
	case *syntax.BinaryCmd:
		return isCondition(c.Y)
	case *syntax.CallExpr:
		return len(c.Args) > 0 && slices.Contains([]string{"[", "test", "false", "grep", "command", "type", "which", "hash"}, c.Args[0].Lit())
	}
	return false
}

// runDeclaration follows export, declare, local, readonly and typeset.
func (in interpreter) runDeclaration(c *syntax.DeclClause) {
	export, local := c.Variant.Value == "export", c.Variant.Value != "export" && c.Variant.Value != "readonly"
	edited, refers := false, false
	in.budget.chars += len(c.Args)
	declare := func(name string, made *Assignment) {
		// local NAME: the caller of the function keeps its value.
		if _, hidden := in.locals[name]; local && in.locals != nil && !hidden {
			in.locals[name] = in.env.vars[name]
		}
		switch {
		case made != nil:
			in.setVariable(made, export)
			if edited {
				in.forgetVariables(name)
			}
			if refers { // declare -n NAME=OTHER: a later value is one of OTHER
				in.assignNamed(made.Value)
			}
		case export:
			in.exportVariable(name)
		}
	}
	for _, a := range c.Args {
		if a.Name != nil {
			var made *Assignment
			if !a.Naked {
				made = expander{in.shell}.evalAssignment(a)
			}
			declare(a.Name.Value, made)
			continue
		}
		for _, w := range (expander{in.shell}).expandFields([]*syntax.Word{a.Value}) {
			if option, _ := w.Literal(); strings.HasPrefix(option, "-") {
				named := strings.Contains(option, "n")
				if named && c.Variant.Value == "export" {
					return
				}
				export = export || strings.Contains(option, "x")
				local = local && !strings.Contains(option, "g")
				edited = edited || strings.ContainsAny(option, "cilnu") // the shell changes the values
				refers = refers || named
				continue
			}
			// "NAME=value", or words that a variable or a command has.
			before, value, sets := w.Cut('=')
			switch name, known := before.Literal(); {
			case !known || !syntax.ValidName(name):
				in.script.Unread = append(in.script.Unread, w)
				if r := w.Only(); export && !sets && (r == nil || r.Output == nil) { // export $NAME MASTER_{ADDR,PORT}
					in.exportAllVariables()
				}
			case sets:
				declare(name, in.newAssignment(name, value, w.At))
			default:
				declare(name, nil)
			}
		}
	}
}

// runSimpleCommand follows a simple command: assignments, or a program.
func (in interpreter) runSimpleCommand(c *syntax.CallExpr, redirects []*syntax.Redirect) {
	words := expander{in.shell}.expandFields(c.Args)
	if len(words) == 0 {
		for _, a := range c.Assigns {
			in.setVariable(expander{in.shell}.evalAssignment(a), false)
		}
		return
	}
	cmd := in.newCommand(words)
	for _, a := range c.Assigns {
		made := expander{in.shell}.evalAssignment(a)
		made.Exported = made.Seq
		cmd.Env = append(cmd.Env, made)
	}
	var document *Word
	for _, r := range redirects {
		if r.Hdoc != nil {
			// The expanded text of a here-document.
			e := expander{in.shell}
			quoted := slices.ContainsFunc(r.Word.Parts, func(p syntax.WordPart) bool {
				_, literal := p.(*syntax.Lit)
				return !literal || strings.Contains(p.(*syntax.Lit).Value, "\\")
			})
			at := e.src.placeOf(r.Hdoc.Pos())
			var chars []Char
			if quoted {
				chars = e.rawText(e.src.offset(r.Hdoc.Pos()), e.src.offset(r.Hdoc.End()), false)
			} else {
				chars = e.expandWord(r.Hdoc, inDocument)
			}
			if r.Op == syntax.DashHdoc {
				chars = withoutTabs(chars)
			}
			body := joinChars(withoutEnd(chars, e.expandValue(r.Word)), at)
			document = &body
		}
		cmd.Redirects = append(cmd.Redirects, Redirect{Op: r.Op.String(), Word: expander{in.shell}.expandValue(r.Word)})
	}
	in.runCommand(cmd, document)
}

// runCommand records a command, and follows its effect on the shell and the programs
// that it starts.
func (in interpreter) runCommand(cmd *Command, document *Word) {
	if in.budget.isSpent() {
		return
	}
	in.script.Commands = append(in.script.Commands, cmd)
	launcher{in.shell}.recordFiles(cmd, document)
	name := cmd.Arg(0)
	if f := in.functions[name]; f != nil {
		in.callFunction(f, cmd)
		return
	}
	if !runBuiltin(in.shell, name, cmd) {
		launcher{in.shell}.startProgram(cmd, document)
	}
}

// callFunction follows a function with its arguments.
func (in interpreter) callFunction(f *function, cmd *Command) {
	f.called = true
	if in.shells >= maxShells || !in.enterLevel() {
		return
	}
	defer in.leaveLevel()
	saved, src, outer := map[string]*variable{}, in.src, in.locals
	set := func(name string, v *variable) {
		saved[name] = in.env.vars[name]
		in.env.setOrDelete(name, v)
	}
	arguments := cmd.Words[min(1, len(cmd.Words)):]
	for i := 1; i <= 9; i++ {
		if i <= len(arguments) {
			set(string(rune('0'+i)), &variable{value: arguments[i-1]})
		} else {
			set(string(rune('0'+i)), nil)
		}
	}
	for _, name := range []string{"@", "*"} {
		if len(cmd.Words) > 0 {
			set(name, &variable{array: slices.Clone(arguments)})
		} else {
			set(name, nil)
		}
	}
	in.shells++
	in.src, in.locals = f.src, saved
	in.runStatement(f.body)
	in.src, in.locals = src, outer
	in.shells--
	for name, v := range saved {
		in.env.setOrDelete(name, v)
	}
}
