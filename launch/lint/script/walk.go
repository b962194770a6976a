package script

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// interpreter walks the statements of a source in the order in which a shell
// would, taking every branch and every loop once.
type interpreter struct {
	script    *Script
	src       *source
	env       *environment
	functions map[string]*function
	budget    *budget
	situation
	shells int // how many shells and functions deep
}

// situation is what a command has in common with those around it.
type situation struct {
	via        []*Command
	depth      int
	loop       bool
	branch     bool
	test       bool
	captured   bool
	background bool
	remote     bool
	piped      bool
	uncalled   bool
}

type function struct {
	body   *syntax.Stmt
	src    *source
	called bool
}

// budget bounds the work, for all shells of a script together.
type budget struct {
	seq, commands, chars, levels int
}

func (b *budget) next() int {
	b.seq++
	return b.seq
}

func (b *budget) spent() bool { return b.commands > maxCommands || b.chars > maxChars }

// enter goes a level deeper, unless that is too deep or too much.
func (in *interpreter) enter() bool {
	if in.budget.levels >= maxLevels || in.budget.spent() {
		return false
	}
	in.budget.levels++
	return true
}

func (in *interpreter) leave() { in.budget.levels-- }

// run walks a script of its own: a file, or one written by another.
func run(src *source, file *syntax.File, b *budget) *Script {
	s := &Script{}
	s.Directives, s.Late = directives(src.lines())
	options := newSlurmOptions(true)
	for _, d := range s.Directives {
		found, _, _ := options.parse(d.Words)
		s.Batch = append(s.Batch, found...)
	}
	in := &interpreter{script: s, src: src, env: newEnvironment(), functions: map[string]*function{}, budget: b}
	in.notes(file)
	for _, w := range exported(s.Batch) {
		name, value, _ := w.Cut('=')
		in.assign(in.newAssignment(name.Text(), value, w.At), true)
	}
	in.stmts(file.Stmts)
	for _, name := range sortedNames(in.functions) {
		if f := in.functions[name]; !f.called {
			in.uncalled = true
			in.call(f, &Command{})
		}
	}
	return s
}

func sortedNames(functions map[string]*function) []string {
	var names []string
	for name := range functions {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// notes keeps the comments, and where simple commands begin and end.
func (in *interpreter) notes(file *syntax.File) {
	syntax.Walk(file, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.Comment:
			in.script.Comments = append(in.script.Comments, Comment{in.src.pos(n.Hash), n.Text})
		case *syntax.Stmt:
			switch n.Cmd.(type) {
			case *syntax.CallExpr, *syntax.DeclClause, *syntax.BinaryCmd:
				in.script.Ranges = append(in.script.Ranges, Range{in.src.pos(n.Pos()), in.src.pos(n.End())})
			}
		}
		return true
	})
}

// fork is a subshell: what it sets is lost.
func (in *interpreter) fork() *interpreter {
	sub := *in
	sub.env = in.env.fork()
	return &sub
}

// within does something in another situation.
func (in *interpreter) within(change func(*situation), do func()) {
	saved := in.situation
	change(&in.situation)
	do()
	in.situation = saved
}

func (in *interpreter) stmts(list []*syntax.Stmt) {
	for _, s := range list {
		in.stmt(s)
	}
}

func (in *interpreter) stmt(s *syntax.Stmt) {
	if s == nil || s.Cmd == nil || !in.enter() {
		return
	}
	defer in.leave()
	in.within(func(sit *situation) { sit.background = sit.background || s.Background }, func() {
		switch c := s.Cmd.(type) {
		case *syntax.CallExpr:
			in.simple(c, s.Redirs)
		case *syntax.DeclClause:
			in.declare(c)
		case *syntax.BinaryCmd:
			in.binary(c)
		case *syntax.FuncDecl:
			if c.Name != nil {
				in.functions[c.Name.Value] = &function{body: c.Body, src: in.src}
			}
		default:
			in.compound(s.Cmd)
		}
	})
}

func (in *interpreter) compound(cmd syntax.Command) {
	switch c := cmd.(type) {
	case *syntax.Block:
		in.stmts(c.Stmts)
	case *syntax.Subshell:
		sub := in.fork()
		sub.stmts(c.Stmts)
	case *syntax.IfClause:
		in.choose(c)
	case *syntax.WhileClause:
		in.repeat(c.Cond, c.Do)
	case *syntax.ForClause:
		in.each(c)
	case *syntax.CaseClause:
		in.cases(c)
	case *syntax.TimeClause:
		in.stmt(c.Stmt)
	case *syntax.CoprocClause:
		in.stmt(c.Stmt)
	case *syntax.TestDecl:
		in.stmt(c.Body)
	case *syntax.ArithmCmd, *syntax.LetClause:
		in.forget(assignedNames(c)...)
	}
}

// assignedNames are the variables that a piece of a script gives a value:
// NAME=value, NAME++ and NAME+=1.
func assignedNames(node syntax.Node) []string {
	var names []string
	arithmetic := func(x syntax.ArithmExpr) {
		if w, ok := x.(*syntax.Word); ok && syntax.ValidName(w.Lit()) {
			names = append(names, w.Lit())
		}
	}
	syntax.Walk(node, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.Assign:
			if n.Name != nil && !n.Naked {
				names = append(names, n.Name.Value)
			}
		case *syntax.UnaryArithm:
			if n.Op == syntax.Inc || n.Op == syntax.Dec {
				arithmetic(n.X)
			}
		case *syntax.BinaryArithm:
			if assigns(n.Op) {
				arithmetic(n.X)
			}
		}
		return true
	})
	return names
}

func assigns(op syntax.BinAritOperator) bool {
	return op == syntax.Assgn || op >= syntax.AddAssgn && op <= syntax.PowAssgn
}

func test(sit *situation)    { sit.test = true }
func branch(sit *situation)  { sit.branch = true }
func looping(sit *situation) { sit.loop = true }

// choose walks if, elif and else.
func (in *interpreter) choose(c *syntax.IfClause) {
	before := in.env
	var ends []*environment
	for ; c != nil; c = c.Else {
		if len(c.Cond) > 0 {
			in.within(test, func() { in.stmts(c.Cond) })
		}
		base := in.env
		in.env = base.fork()
		in.within(branch, func() { in.stmts(c.Then) })
		ends = append(ends, in.env)
		in.env = base
		if c.Else == nil && len(c.Cond) > 0 {
			ends = append(ends, base.fork()) // none was taken
		}
	}
	in.env = before
	in.env.merge(ends)
}

// repeat walks a loop once, and then does not know what it has set.
func (in *interpreter) repeat(condition, body []*syntax.Stmt) {
	in.within(test, func() { in.within(looping, func() { in.stmts(condition) }) })
	never := in.env.fork()
	// From the second time on they have what the body gave them.
	for _, s := range body {
		in.forget(assignedNames(s)...)
	}
	in.within(looping, func() { in.stmts(body) })
	in.env.merge([]*environment{in.env.fork(), never})
}

func (in *interpreter) each(c *syntax.ForClause) {
	if iter, ok := c.Loop.(*syntax.WordIter); ok {
		in.fields(iter.Items)
		in.forget(iter.Name.Value)
	} else {
		in.forget(assignedNames(c.Loop)...)
	}
	in.repeat(nil, c.Do)
}

func (in *interpreter) cases(c *syntax.CaseClause) {
	in.expand(c.Word, inQuotes)
	ends := []*environment{in.env.fork()}
	for _, item := range c.Items {
		base := in.env
		in.env = base.fork()
		in.within(branch, func() { in.stmts(item.Stmts) })
		ends = append(ends, in.env)
		in.env = base
	}
	in.env.merge(ends)
}

func (in *interpreter) binary(c *syntax.BinaryCmd) {
	switch c.Op {
	case syntax.AndStmt:
		in.stmt(c.X)
		in.stmt(c.Y)
	case syntax.OrStmt:
		in.within(test, func() { in.stmt(c.X) })
		in.within(branch, func() { in.stmt(c.Y) })
	default:
		left, right := in.fork(), in.fork()
		left.piped = true
		left.stmt(c.X)
		right.stmt(c.Y)
	}
}

// declare is export, declare, local, readonly and typeset.
func (in *interpreter) declare(c *syntax.DeclClause) {
	export := c.Variant.Value == "export"
	for _, a := range c.Args {
		if a.Name == nil {
			option, _ := in.value(a.Value).Literal()
			if strings.HasPrefix(option, "-") && strings.Contains(option, "x") {
				export = true
			}
			if strings.HasPrefix(option, "-") && strings.Contains(option, "n") && c.Variant.Value == "export" {
				return
			}
			continue
		}
		switch {
		case a.Naked && export:
			in.export(a.Name.Value)
		case !a.Naked:
			in.assign(in.assignment(a), export)
		}
	}
}

// assignment evaluates NAME=value, NAME+=value and NAME=(...).
func (in *interpreter) assignment(a *syntax.Assign) *Assignment {
	name := a.Name.Value
	old := in.env.vars[name]
	value := in.value(a.Value)
	var array []Word
	if a.Array != nil {
		array = []Word{}
		for _, e := range a.Array.Elems {
			if e.Value != nil {
				array = append(array, in.fields([]*syntax.Word{e.Value})...)
			}
		}
	}
	if value.At == 0 && a.Value == nil {
		value.At = in.src.pos(a.Pos())
	}
	if a.Append && old != nil && !old.unknown {
		array, value = appended(old, array, value)
		in.budget.chars += len(value.Chars) + len(array)
	}
	made := in.newAssignment(name, value, in.src.pos(a.Pos()))
	made.Array = array
	if a.Append && (old == nil || old.unknown) || a.Index != nil {
		made.Inherited = true
		made.Value = Word{Chars: in.unknown(a.Pos(), &Ref{Name: name, Assigned: true}, inQuotes), At: made.At}
		made.Array = nil
	}
	return made
}

// appended is what NAME+=... makes of a variable.
func appended(old *variable, array []Word, value Word) ([]Word, Word) {
	switch {
	case array != nil && old.array != nil:
		array = slices.Concat(old.array, array)
	case array != nil && len(old.value.Chars) > 0:
		array = append([]Word{old.value}, array...)
	case array == nil:
		value = Word{Chars: slices.Concat(old.value.Chars, value.Chars), At: value.At}
	}
	if len(value.Chars) > maxWord {
		value.Chars = value.Chars[:maxWord]
	}
	if len(array) > maxCommands {
		array = array[:maxCommands]
	}
	return array, value
}

// simple is a simple command: assignments, or a program.
func (in *interpreter) simple(c *syntax.CallExpr, redirects []*syntax.Redirect) {
	words := in.fields(c.Args)
	if len(words) == 0 {
		for _, a := range c.Assigns {
			in.assign(in.assignment(a), false)
		}
		return
	}
	cmd := in.newCommand(words)
	for _, a := range c.Assigns {
		made := in.assignment(a)
		made.Exported = made.Seq
		cmd.Env = append(cmd.Env, made)
	}
	var document *Word
	for _, r := range redirects {
		if r.Hdoc != nil {
			body := in.document(r)
			document = &body
		}
		cmd.Redirects = append(cmd.Redirects, Redirect{Op: r.Op.String(), Word: in.value(r.Word)})
	}
	in.command(cmd, document)
}

// document is the text of a here-document after expansion.
func (in *interpreter) document(r *syntax.Redirect) Word {
	quoted := slices.ContainsFunc(r.Word.Parts, func(p syntax.WordPart) bool {
		_, literal := p.(*syntax.Lit)
		return !literal || strings.Contains(p.(*syntax.Lit).Value, "\\")
	})
	at := in.src.pos(r.Hdoc.Pos())
	var chars []Char
	if quoted {
		chars = in.raw(in.src.offset(r.Hdoc.Pos()), in.src.offset(r.Hdoc.End()), false)
	} else {
		chars = in.expand(r.Hdoc, inDocument)
	}
	if r.Op == syntax.DashHdoc {
		chars = withoutTabs(chars)
	}
	return whole(withoutEnd(chars, in.value(r.Word)), at)
}

// withoutTabs drops those at the beginning of lines, as <<- does.
func withoutTabs(chars []Char) []Char {
	out, start := make([]Char, 0, len(chars)), true
	for _, c := range chars {
		if start && c.Ref == nil && c.Byte == '\t' {
			continue
		}
		start = c.Ref == nil && c.Byte == '\n'
		out = append(out, c)
	}
	return out
}

// withoutEnd drops the line that ends a here-document: the parser counts it in.
func withoutEnd(chars []Char, end Word) []Char {
	last := len(chars) - 1
	for last >= 0 && (chars[last].Ref != nil || chars[last].Byte != '\n') {
		last--
	}
	if strings.TrimLeft((Word{Chars: chars[last+1:]}).Text(), "\t") == end.Text() {
		return chars[:last+1]
	}
	return chars
}

func (in *interpreter) newCommand(words []Word) *Command {
	in.budget.commands++
	exports := in.env.exports()
	in.budget.chars += len(exports)
	return &Command{
		environment: exports,
		Words:       words, Via: in.via, Depth: in.depth, Seq: in.budget.next(), At: words[0].At,
		Loop: in.loop, Branch: in.branch, Test: in.test, Captured: in.captured, Background: in.background,
		Remote: in.remote, Pipefail: in.env.pipefail, Piped: in.piped, Uncalled: in.uncalled,
	}
}

// command notes a command and follows what it does to the shell, and what it
// starts.
func (in *interpreter) command(cmd *Command, document *Word) {
	if in.budget.spent() {
		return
	}
	in.script.Commands = append(in.script.Commands, cmd)
	name := cmd.Arg(0)
	if f := in.functions[name]; f != nil {
		in.call(f, cmd)
		return
	}
	if !in.builtin(name, cmd) {
		in.start(cmd, document)
	}
}

// call runs a function with its arguments.
func (in *interpreter) call(f *function, cmd *Command) {
	f.called = true
	if in.shells >= maxShells || !in.enter() {
		return
	}
	defer in.leave()
	saved, src := map[string]*variable{}, in.src
	set := func(name string, v *variable) {
		saved[name] = in.env.vars[name]
		in.env.vars[name] = v
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
	in.src = f.src
	in.stmt(f.body)
	in.src = src
	in.shells--
	for name, v := range saved {
		if v == nil {
			delete(in.env.vars, name)
		} else {
			in.env.vars[name] = v
		}
	}
}

// builtin is what a command does to the shell itself.
func (in *interpreter) builtin(name string, cmd *Command) bool {
	var names []string
	for i := 1; i < len(cmd.Words); i++ {
		if arg := cmd.Arg(i); arg != "" && !strings.HasPrefix(arg, "-") {
			names = append(names, arg)
		}
	}
	switch name {
	case "unset":
		for _, n := range names {
			in.env.vars[n] = &variable{unset: true}
		}
	case "set":
		in.set(cmd)
	case "shift", "getopts":
		in.forget("1", "2", "3", "4", "5", "6", "7", "8", "9", "@", "*", "OPTARG")
	case "read", "mapfile", "readarray":
		in.forget(names...)
	case "printf":
		if cmd.Arg(1) == "-v" {
			in.forget(cmd.Arg(2))
		}
	case "source", ".":
	default:
		return false
	}
	return true
}

// set follows set -a and set -o pipefail.
func (in *interpreter) set(cmd *Command) {
	for i := 1; i < len(cmd.Words); i++ {
		switch arg := cmd.Arg(i); {
		case arg == "pipefail" && strings.HasPrefix(cmd.Arg(i-1), "-"):
			in.env.pipefail = true
		case arg == "allexport":
			in.env.exportAll = strings.HasPrefix(cmd.Arg(i-1), "-")
		case strings.HasPrefix(arg, "-") && !strings.HasPrefix(arg, "--") && strings.Contains(arg, "a"):
			in.env.exportAll = true
		case strings.HasPrefix(arg, "+") && strings.Contains(arg, "a"):
			in.env.exportAll = false
		}
	}
}
