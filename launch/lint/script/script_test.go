package script_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/launch/lint/script"
)

func read(t *testing.T, text string) *script.Script {
	t.Helper()
	s, err := script.Read([]byte(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return s
}

// probes are the arguments of all commands called probe, as they are expanded
// without running anything.
func probes(t *testing.T, text string) []string {
	t.Helper()
	var all []string
	for _, c := range read(t, text).Commands {
		if c.Name() != "probe" {
			continue
		}
		var line strings.Builder
		for _, w := range c.Words[1:] {
			text, known := w.Literal()
			if !known {
				t.Errorf("%s is not known in %s", w.Text(), c.Text())
			}
			line.WriteString("<" + text + ">")
		}
		all = append(all, line.String())
	}
	return all
}

// Words are expanded as bash itself expands them.
func TestAsBashDoes(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	for _, text := range []string{
		`probe a 'b c' "d e" f\ g $'h i' ""`,
		"X='a b'; probe $X \"$X\" '$X' \\$X \"\\$X\" x$X\"$X\"y",
		"X=\"one \\\n  two\"; probe $X \"$X\"",
		"probe a\\\nb \\\n  c",
		"E=; probe $E \"$E\" ${E:-none} ${E:+some}x",
		"X=a; X+=b; X+=\" c\"; probe $X",
		"X=1; (X=2; probe $X); probe $X; { X=3; }; probe $X",
		"if false; then X=1; else X=1; fi; Y=0; probe $Y",
		"export X='a b'; Y=hidden; bash -c 'probe \"$X\" x'; bash -c \"probe $Y\"",
		"export X=1; X=2 bash -c 'probe $X'; probe $X; env X=3 Z=4 bash -c 'probe $X $Z'",
		"set -a; X=5; bash -c 'probe $X'; set +a; Z=6; bash -c \"probe x$Z\"",
		"bash -eo pipefail -c 'probe a'; bash -o pipefail -c 'probe b'; bash -lc 'probe c'",
		"CMD='probe \"a b\" c'; $CMD; bash -c \"$CMD\"",
		"L=\"probe a \\\\\\$HOMELESS 'b c'\"; bash -c \"$L\"",
		"unset X; X=${X:-d e}; probe $X \"$X\"",
		"probe a; true && probe b; false || probe c",
		"unset X; probe x$X; X=1; unset X; probe \"x${X-unset}\"",
		"X=1; X=3 & wait; probe $X",
		"X=1; [ -d / ] && probe $X; IFS=:; probe $X 'a:b'",
		"probe a>/dev/stdout b; ! probe c; { probe d; }; (probe e)",
		"X=1; f() { echo \"$X\" >/dev/null; }; f; probe $X",
	} {
		cmd := exec.Command(bash, "-c", `probe() { for a; do printf '<%s>' "$a"; done; echo; }; export -f probe; `+"\n"+text)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("bash: %v\n%s", err, text)
			continue
		}
		want := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
		if got := probes(t, text); !slices.Equal(got, want) {
			t.Errorf("%s\n got  %q\n bash %q", text, got, want)
		}
	}
}

// What a loop changes is not known in it, and what a command finds in its
// environment is.
func TestEnvironment(t *testing.T) {
	s := read(t, `i=0
for h in a b; do torchrun "$i" "$h" x; i=$((i + 1)); done
for ((j = 0; j < 2; j++)); do torchrun "$j" x; done
k=0; ((k++)); torchrun "$k" x
export A=1 B=2
C=3 torchrun
unset B
(export A=9)
srun --export=ALL,D=4 env E=5 torchrun
docker run -e A=6 --env=F=7 image torchrun
env -u A torchrun
if true; then A=8; fi
torchrun
`)
	var got []string
	for _, c := range s.Commands {
		if c.Name() != "torchrun" {
			continue
		}
		line := ""
		for _, w := range c.Words[1:] {
			line += w.Text()
		}
		for _, name := range []string{"A", "B", "C", "D", "E", "F"} {
			if a := c.Getenv(name); a != nil {
				line += name + a.Value.Text()
			}
		}
		got = append(got, line)
	}
	want := []string{"$i$hx", "$jx", "$kx", "A1B2C3", "A1D4E5", "A6F7", "", ""}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// Slurm reads options in every form that getopt has, and directives up to the
// first command.
func TestDirectives(t *testing.T) {
	s := read(t, `#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node 1   # a remark
#SBATCH -c8 -t 1:00:00
#SBATCH --job-name="two words" -o 'it is'\ %j
##SBATCH --mem=1G
# SBATCH --mem=2G
 #SBATCH --mem=3G

#SBATCH --exclusive --gres gpu:a100:4
hostname
#SBATCH --mem=5G
`)
	var got []string
	for _, o := range s.Batch {
		got = append(got, o.Name+"="+o.Value.Text())
	}
	want := []string{"nodes=2", "ntasks-per-node=1", "cpus-per-task=8", "time=1:00:00", "job-name=two words", "output=it is %j", "exclusive=", "gres=gpu:a100:4"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if len(s.Late) != 1 || len(s.Directives) != 4 {
		t.Errorf("%d and %d lines", len(s.Directives), len(s.Late))
	}
}

// What starts what, in which shell, is what the rules ask about.
func TestStarted(t *testing.T) {
	s := read(t, `#!/bin/bash
#SBATCH --nodes=2
srun -lN2 --label --cpu-bind none -w "$HEAD" env A=1 numactl --interleave=all bash -lc 'cd /x && exec torchrun --a "$SLURM_PROCID"'
timeout -k 5 60 python train.py "$SLURM_PROCID"
H=$(srun -n1 hostname)
srun $ARGS -u python one.py &
srun --nodelist="${N[@]:0:2}" python two.py
`)
	var got []string
	for _, c := range s.Commands {
		var via []string
		for _, v := range c.Via {
			via = append(via, v.Name())
		}
		line := strings.Join(via, ">") + ": " + c.Text()
		for _, w := range c.Words {
			for _, r := range w.Refs() {
				if r.Depth < c.Depth {
					line += " [" + r.Name + " outside]"
				}
			}
		}
		if c.Background {
			line += " [background]"
		}
		if c.Remote {
			line += " [remote]"
		}
		if c.Open {
			line += " [open]"
		}
		got = append(got, line)
	}
	want := strings.Split(strings.TrimSpace(`
: srun -lN2 --label --cpu-bind none -w $HEAD env A=1 numactl --interleave=all bash -lc cd /x && exec torchrun --a "$SLURM_PROCID"
srun: env A=1 numactl --interleave=all bash -lc cd /x && exec torchrun --a "$SLURM_PROCID"
srun>env: numactl --interleave=all bash -lc cd /x && exec torchrun --a "$SLURM_PROCID"
srun>env>numactl: bash -lc cd /x && exec torchrun --a "$SLURM_PROCID"
srun>env>numactl>bash: cd /x
srun>env>numactl>bash: exec torchrun --a $SLURM_PROCID
srun>env>numactl>bash>exec: torchrun --a $SLURM_PROCID
: timeout -k 5 60 python train.py $SLURM_PROCID
timeout: python train.py $SLURM_PROCID
: srun $ARGS -u python one.py [background] [open]
srun: python one.py [background]
: srun --nodelist=$N python two.py [open]
srun: python two.py`), "\n")
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			t.Fatalf("command %d differs:\n%s\nwant\n%s", i, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// The body of a function is read once, without known variables; a call forgets the variables that
// the body may set.
func TestFunctions(t *testing.T) {
	s := read(t, `X=1 Y=2 Z=3
f() { Y=4; printf -v "$1" 5; srun torchrun $X $1; }
f Z
torchrun $X $Y $Z
`)
	var got []string
	for _, c := range s.Commands {
		if c.Name() == "torchrun" {
			line := c.Text()
			if c.InFunction {
				line += " [in a function]"
			}
			got = append(got, line)
		}
	}
	if want := []string{"torchrun 1 $Y $Z", "torchrun $X $1 [in a function]"}; !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// Work is bounded, whatever the script: what grows without end is cut off.
func TestBounded(t *testing.T) {
	grow := "A=aaaaaaaaaaaaaaaa\n" + strings.Repeat("A=$A$A$A$A$A$A$A$A\n", 50) + strings.Repeat("probe $A $A $A\n", 500)
	calls := "f() { f; f; f; bash -c 'echo x'; }\nexport -f f\nf\n"
	shells := "export X='bash -c \"$X\"; bash -c \"$X\"'\nbash -c \"$X\"\n"
	deep := strings.Repeat("( ", 900) + "true" + strings.Repeat(" )", 900)
	for name, text := range map[string]string{"grow": grow, "calls": calls, "shells": shells, "deep": deep} {
		s, err := script.Read([]byte(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		chars := 0
		for _, c := range s.Commands {
			for _, w := range c.Words {
				chars += len(w.Chars)
			}
		}
		if len(s.Commands)+len(s.Assignments) > 5000 || chars > 2<<20 {
			t.Errorf("%s: %d commands, %d assignments and %d characters", name, len(s.Commands), len(s.Assignments), chars)
		}
	}
}

// What bash refuses is reported in bash's own words.
func TestSyntaxErrorsAsBash(t *testing.T) {
	for _, text := range []string{
		"if true; then\n ls\n", "echo 'abc\n", "echo \"abc\n", "echo $(ls\n", "echo ${A\n", "echo `ls\n",
		"for i in 1 2; do\necho\n", "done\n", "ls )\n", "a() {\n ls\n", "cat <in >\n", "if ; then ls; fi\n",
		"case x in\na) ls\n", "ls | | wc\n", "ls &&\n", "&& ls\n", "fi\n", "while true; ls; done\n", "A=(1 2\n", "then ls\n",
		"[[ -f x ]\n", "foo(bar) {\n ls\n}\n", "}\n", "echo a; ; echo b\n", "if true; then ls; else; fi\n", "x(f\"a b\")\n",
		"esac\n", "for do\n", "echo <(ls\n", "select x in; do\n", "until x; do y; fi\n", "ls; } \n",
	} {
		check := exec.Command("bash", "-n")
		check.Stdin, check.Env = strings.NewReader(text), []string{"LC_ALL=C", "PATH=" + os.Getenv("PATH")}
		out, _ := check.CombinedOutput()
		_, want, _ := strings.Cut(string(out), "line ")
		_, want, _ = strings.Cut(want, ": ")
		want, _, _ = strings.Cut(want, "\n")
		if _, err := script.Read([]byte(text)); want == "" || err == nil || err.Error() != want {
			t.Errorf("%q: %v, bash says: %s", text, err, out)
		}
	}
}

// A here-document without its end is no error for bash, which warns.
func TestOpenHereDocument(t *testing.T) {
	s, err := script.Read([]byte("srun hostname\ncat <<EOF\ntext\n"))
	if err != nil || len(s.Commands) != 3 {
		t.Errorf("%v: %+v, want srun, hostname and cat", err, s)
	}
}
