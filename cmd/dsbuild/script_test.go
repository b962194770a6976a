package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/dsbuild/dsbuild/internal/testkit/schema"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
)

// TestMain makes programs of this test binary, called again under their names:
// dsbuild for the scripts, stubborn for TestSecondInterrupt.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"dsbuild": withoutTerminal, "stubborn": stubborn})
}

// withoutTerminal is main in a session of its own, so that no test asks the person who runs the tests
// for a passphrase. A test of questions has a terminal of its own, whose session it leads already. Go's collector would take a
// tenth of the time of such a short program; a test of its memory sets GOGC.
func withoutTerminal() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	_, _ = syscall.Setsid() //nolint:errcheck // see above
	main()
}

// TestScripts runs testdata/script/*.txtar: the command line told as scripts,
// each in a folder of its own with an empty home. $BIN is the folder of dsbuild,
// for a PATH without this machine's programs. UPDATE_SCRIPTS=1 rewrites what the
// scripts compare with.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("UPDATE_SCRIPTS") != "",
		Setup: func(env *testscript.Env) error {
			home := env.WorkDir + "/home"
			env.Setenv("HOME", home)
			env.Setenv("LC_ALL", "C.UTF-8")
			env.Setenv("COLUMNS", "80")
			bin, _, _ := strings.Cut(env.Getenv("PATH"), string(os.PathListSeparator)) // TestMain's
			env.Setenv("BIN", bin)
			for _, name := range []string{"PIP_INDEX_URL", "DSBUILD_TORCH_INDEX"} { // nothing is asked for outside
				env.Setenv(name, "http://127.0.0.1:9/simple")
			}
			return os.Mkdir(home, 0o755)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": cmdExits,
			"mkwheel": func(ts *testscript.TestScript, _ bool, args []string) {
				makeWheel(t, ts.MkAbs(args[0]), args[1:])
			},
			"builtwheel": func(ts *testscript.TestScript, _ bool, args []string) {
				makeBuiltWheel(t, ts.MkAbs(args[0]))
			},
			"schema": func(ts *testscript.TestScript, _ bool, args []string) {
				file := "stdout"
				if len(args) > 1 {
					file = args[1]
				}
				ts.Check(schema.Validate(t, args[0], []byte(ts.ReadFile(file))))
			},
			"mkpolicy": cmdPolicy,
		},
	})
}

// cmdExits is "exits N PROGRAM ARGS...": like exec, but the program must exit
// with just the code N.
func cmdExits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARGS...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// makeWheel is "mkwheel DIR [NAME=TEXT...]": a small wheel in DIR, of whose file
// with a name that ends in NAME the given text is taken out; RECORD is made anew.
func makeWheel(t *testing.T, dir string, damage []string) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := wheeltest.Packed(t, dir, wheeltest.Options{})
	files := wheeltest.Read(t, path)
	for _, d := range damage {
		ending, text, _ := strings.Cut(d, "=")
		for name := range files {
			if strings.HasSuffix(name, ending) {
				files[name] = strings.ReplaceAll(files[name], text, "")
			}
		}
	}
	if len(damage) > 0 {
		wheeltest.Write(t, path, files)
	}
}

// makeBuiltWheel is "builtwheel DIR": a small wheel in DIR with its manifest and statement beside it.
func makeBuiltWheel(t *testing.T, dir string) {
	file, m, statement := wheeltest.Built(t, t.TempDir(), wheeltest.Options{})
	if _, err := pipeline.Export(t.Context(), pipeline.StoredWheel{File: file, Manifest: m, Provenance: statement}, dir); err != nil {
		t.Fatal(err)
	}
}

// cmdPolicy is "mkpolicy FILE KEY [PRINCIPAL]": a policy that trusts a key, or certificates by it.
func cmdPolicy(ts *testscript.TestScript, _ bool, args []string) {
	key := strings.TrimSpace(ts.ReadFile(args[1] + ".pub"))
	text := fmt.Sprintf("signers: [{name: signer, key: %q}]\n", key)
	if len(args) > 2 {
		text = fmt.Sprintf("signers: [{name: signer, ca: %q, principals: [%s]}]\n", key, args[2])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o644))
}

// stubborn is a program that takes no notice of its cancelled context.
func stubborn() {
	ctx, stop := withInterrupt(context.Background(), ui.New(os.Stderr, ui.Options{}), func() {})
	defer stop()
	fmt.Println("ready")
	<-ctx.Done()
	fmt.Println("interrupted")
	time.Sleep(time.Minute)
}
