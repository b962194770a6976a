package script_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// trickyScripts change variables in ways that a reader overlooks. The reader of scripts may not know
// a value then; it must not take another one for it. It reads on behind exit and return, does not know what a
// sourced file sets, and leaves ~ and {a,b} as they are written.
func trickyScripts() []string {
	return []string{
		// Numbers.
		"probe $((010 + 1)) $((0x10 + 1)) $((2#101)) $((7 / -2)) $((-7 % 3)) $((-(3) * 2)) $((2 ** 3)) $((1 << 4)) $((5 > 3 ? 1 : 2))",
		"N=010; probe $((N + 1)) $N $((N))", "N=-3; probe $((N - -2)) $((N*N))", "N=' 4 '; probe $((N + 1))", "N=3x; probe $N",
		"X=1; probe $((X++)); probe $X", "X=1; probe $((++X)); probe $X", "X=1; Y=$((X += 5)); probe $X $Y", "X=1; ((X = 7)); probe $X", "X=1; let X=X+2; probe $X",
		"X=1; : $((X = 4)); probe $X", "A=(1 2); ((A[0] = 9)); probe ${A[0]}", "X=1; while ((X < 3)); do ((X++)); done; probe $X", "N=M; M=5; probe $((N))",
		"X=9223372036854775807; probe $((X + 1))", "probe $((1, 2))", "X=1; probe \"${Y:=$((X++))}\" $X", "declare -i X=2+3; probe $X", "X=5; X+=1; probe $X; declare -i Z=5; Z+=1; probe $Z",
		// Arrays.
		"A=([2]=x y); probe ${A[0]-none} ${A[2]-none} ${A[3]-none}", "A=(a b); A[1]=c; probe ${A[@]}", "A=(a b c); unset 'A[0]'; probe ${A[@]}", "A=(a b); A[5]=f; probe ${A[@]} ${#A[@]}",
		"X=a; X[1]=b; probe ${X[@]} $X", "A=(a b c); probe ${A[@]:1} ${A[@]:0:1}", "declare -A M=([k]=v); probe ${M[k]}", "A=(a b); B=(${A[@]} c); unset A; probe ${B[@]} x${A[@]}", "A=(); probe x \"${A[@]}\" y ${A[0]-none}",
		"A=(a b); A=c; probe ${A[@]}", "A=(\"K\"=v \"W\"=x); probe $A ${A[1]}", "A=(a b); f() { local A=(z); probe ${A[@]}; }; f; probe ${A[@]}", "read -r -a A <<<'p q'; probe ${A[1]}", "mapfile -t A <<<'l 1'; probe \"${A[0]}\"",
		// Words.
		"IFS=,; X=a,b; probe $X", "X='*.none'; probe $X \"$X\"", "X='a  b'; Y=$X; probe \"$Y\" $Y", "X='~root'; probe $X",
		"probe $'a\\tb' $'it\\'s' $\"plain\" $'\\a\\e[1m\\q\\\\'", "probe $'a\\x41' x $'\\101'", "probe \"a\\nb\" a\\nb 'a\\nb' \"\\$X \\` \\\\ \\\"\"", "X=abc; probe ${X#a} ${X%c} ${X/b/B} ${X^^} ${#X} ${X:1} ${X:0:1} ${X@Q}", "X=Y; Y=z; probe ${!X}",
		"X=; probe ${X:-a b} \"${X:-a b}\" ${X-a} ${X+set} ${X:+set}x \"${X:+a b}\"", "probe a#b #c", "probe 'a'\"b\"c$'d'", "set -f; probe *; set +f", "probe \\~ \\* \\{a,b\\}", "probe \"$(echo a)\" `echo b`",
		"X='a\nb'; probe \"$X\" $X", "probe \"a  b\"   c\td", "E=''; probe \"\"$E'' $E", "X=1; probe \"${X}2\" $X'2' ${X}\"2\"", "probe \"${UNSET_X?}\" 2>/dev/null || true", "probe ${1:-none} $# \"$@\" x", "probe $0x${0:+y} | cat >/dev/null",
		// Where a variable changes.
		"X=1; X=2 | true; probe $X", "X=1; { X=2; } | cat; probe $X", "X=1; X=2 & wait; probe $X", "X=1; { X=2; } & wait; probe $X", "X=1; (X=2); probe $X", "X=1; echo 5 | read X; probe $X", "X=1; read X <<<'6'; probe $X",
		"X=1; Y=$(X=2; echo a); probe $X", "X=1; coproc { X=2; }; wait; probe $X", "X=1; f() { X=2; }; f; probe $X", "X=1; f() { local X=2; }; f; probe $X", "X=1; f() { X=2; }; (f); probe $X", "X=1; f() { X=2; }; f | cat; probe $X",
		"X=1; f() { X=2; }; Y=$(f); probe $X", "f() { local X=5; g; }; g() { probe ${X:-none}; }; X=1; f; g", "X=1; f() { unset X; }; f; probe ${X-unset}", "f() { declare -g X=8; }; X=1; f; probe $X",
		"X=1; f() { export X=3; }; f; probe $X", "f() { probe $X; }; X=1; X=7 f; probe $X", "X=1; X=7 :; probe $X", "X=1; X=7 eval 'probe $X'; probe $X", "X=1; X=7 export Z=1; probe $X",
		"X=1; printf -v X %s 4; probe $X", "X=1; for X in a b; do :; done; probe $X", "for X; do :; done; probe ${X-unset}", "X=1; for ((X = 0; X < 2; X++)); do :; done; probe $X", "X=1; if true; then X=2; fi; probe $X", "X=1; if false; then X=2; fi; probe $X",
		"X=1; false && X=2; probe $X", "X=1; true || X=2; probe $X", "X=1; case a in a) X=2 ;; *) X=3 ;; esac; probe $X", "X=1; until true; do X=2; done; probe $X", "X=1; select X in; do break; done </dev/null; probe $X", "X=1; ! X=2; probe $X", "X=1; time X=2 2>/dev/null; probe $X",
		"X=1; eval X=2; probe $X", "X=1; eval \"X\"=3; probe $X", "N=X; X=1; eval \"$N=4\"; probe $X", "X=1; unset X Y; probe ${X-unset}", "X=1; unset -v X; probe ${X-unset}",
		"X() { :; }; X=1; unset -f X; probe $X", "readonly X=3; probe $X", "typeset X=4; probe $X", "X=1; declare X; probe $X", "X=1; export -n X; bash -c 'probe ${X-unset}'", "declare -x X=5; bash -c 'probe $X'", "declare -l X=ABC; probe $X", "declare -u X=abc; probe $X",
		"declare -n R=X; R=5; probe $X", "X=1; getopts a X -a; probe $X", "X=1; cd / && X=2; probe $X", "set -- a 'b c'; probe $1 \"$2\" $#; shift; probe \"$1\"", "set a b; probe $2", "f() { shift; probe $1; }; f a b",
		"f() { set -- z; probe $1; }; f a; probe ${1-none}", "f() { probe \"${@:2}\" $#; }; f a b c", "f() { probe $*; }; f 'a b' c", "f() { probe \"$*\"; }; f 'a b' c", "f() { X=$1; }; f 'q r'; probe \"$X\"", "f() { f2() { X=2; }; }; X=1; f; f2; probe $X", "f() { X=1; }; f() { X=2; }; f; probe $X",
		"export X=1; env -i bash -c 'probe ${X-unset}' || true", "export X=1; env -u X bash -c 'probe ${X-unset}'", "X=1; bash -c 'probe ${X-unset}'", "export X=1; (unset X; bash -c 'probe ${X-unset}')", "export X; X=2; bash -c 'probe $X'", "export X=1; env --unset=X Y=2 bash -c 'probe ${X-unset} $Y'", "export X=1; env -uX bash -c 'probe ${X-unset}'", "X=3 bash -c 'X=4; probe $X'; probe ${X-unset}",
		"bash -c 'probe $0 $1' a 'b c'", "bash -c 'probe \"$@\"' _ 'd e' f", "bash -ec 'probe $1' _ g", "bash -s h i <<<'probe $2'", "bash -c \"X=5; probe \\$X\"", "exec 3>/dev/null; probe a", "command probe2 2>/dev/null || probe b", "builtin eval 'probe c'",
		"export \"X=a b\"; bash -c 'probe \"$X\"'", "S='X=1 Y=2'; export $S; bash -c 'probe $X $Y'", "declare \"X=5\"; bash -c 'probe ${X-unset}'; probe $X", "f() { local \"X=2\"; probe $X; }; X=1; f; probe $X",
		"X=1; read -t 1 -d : X <<<2:3; probe $X", "X=1; N=X; printf -v \"$N\" %s 4; probe $X", "X=1; f() { local -n r=$1; r=2; }; f X; probe $X", "X=1; read 'A[0]' <<<5; probe ${A[0]}", "export X Y; X=1; bash -c 'probe ${X-unset} ${Y-unset}'",
		// Here-documents and comments.
		"bash <<-'END'\n\tprobe a\n\t\tprobe 'b\tc'\n\tEND\n", "X=1; bash <<-END\n\tprobe $X \\$Y\n\tEND\n", "bash <<<'probe \"a b\"'", "X='c d'; bash <<<\"probe $X\"", "bash <<\"E F\"\nprobe '$X'\nE F\n", "bash <<'END' && probe z\nprobe y\nEND\n", "cat <<END >/dev/null; probe x\nprobe no\nEND\n",
		"# probe a\nprobe b # probe c\n", ": '\nprobe a\n'; probe b", "probe a \\\n# b\nprobe c", "if false; then probe a; fi; probe b", "f() { probe a; }; probe b", "true <<END\n$(probe a)\nEND\nprobe b",
		"X=1; cat >r.sh <<END\nprobe $X \\${X-unset}\nEND\nbash r.sh; bash ./r.sh x; . ./r.sh; chmod +x r.sh; ./r.sh", "cat >r.sh <<'END'\nX=2; probe $X $1\nEND\nX=1; bash r.sh a; probe $X", "cat >r.sh <<'END'\nprobe a\nEND\necho >r.sh; bash r.sh; probe b",
		"cat >r.sh <<END\nX=1\nEND\ncat >>r.sh <<'END'\nprobe $X\nEND\nbash r.sh",
	}
}

// What the reader of scripts knows about the words of a command is as bash has it.
func TestKnownIsAsBashDoes(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip(err)
	}
	for _, text := range trickyScripts() {
		cmd := exec.CommandContext(t.Context(), bash, "-c", `probe() { for a; do printf '<%s>' "$a"; done; printf '\n-- \n'; }; export -f probe; `+"\n"+text)
		cmd.Env, cmd.Dir = []string{"PATH=" + os.Getenv("PATH"), "HOME=/root"}, t.TempDir()
		out, _ := cmd.Output() //nolint:errcheck // some scripts end otherwise than by 0
		ran := map[string]bool{}
		for _, line := range strings.Split(string(out), "\n-- \n") {
			ran[line] = true
		}
		for _, c := range read(t, text).Commands {
			if c.Name() != "probe" || c.InFunction || c.Branch {
				continue
			}
			line, known := "", true
			for _, w := range c.Words[1:] {
				word, ok := w.Literal()
				line, known = line+"<"+word+">", known && ok
			}
			if known && !ran[line] {
				t.Errorf("%s\n known: %s\n bash:  %q", text, line, out)
			}
		}
	}
}
