package evidence

import (
	"strings"
	"testing"
)

// seen returns what a machine sees of a text; an error begins with "error: ".
func seen(text, machine string) string {
	lines, err := tokens(text, func(macro string) (bool, bool) { return knows(machine, macro) })
	if err != nil {
		return "error: " + err.Error()
	}
	return strings.Join(lines, "\n")
}

func TestTokens(t *testing.T) {
	deep := strings.Repeat("#if A\n", maxDepth+1)
	for name, c := range map[string]struct{ text, want string }{
		"comments":            {"int a; // one\n/* two\n three */ int b;", "int a ; int b ;"},
		"a comment in quotes": {`f("// no", '"', "/*");`, `f ( "// no" , '"' , "/*" ) ;`},
		"a comment on":        {"int a; // one \\\n still one\nint b;", "int a ; int b ;"},
		"joined lines":        {"int lo\\\nng; \"a\\  \nb\"", `int long ; "ab"`},
		"white space":         {"f( a,b )\n\t{ }", "f ( a , b ) { }"},
		"operators":           {"a+ +b; a++b; k<<<1>>>(); x<<=2; a->*b", "a + + b ; a ++ b ; k <<< 1 >>> ( ) ; x <<= 2 ; a ->* b"},
		"numbers":             {"1'000'000 0x1p-3f .5e+1 1.0f-x", "1'000'000 0x1p-3f .5e+1 1.0f - x"},
		"raw strings":         {"R\"x(a\\\n\" // )\" b)x\" c", "R\"x(a\\\x00\" // )\" b)x\" c"},
		"prefixes":            {`u8"a" L'b' LR"(c)" "d"_s "d" _s`, `u8"a" L'b' LR"(c)" "d"_s "d" _s`},
		"CRLF":                {"#define A \\\r\n 1\r\nint a;\r\n", "#define A 1\nint a ;"},
		"a directive":         {"  #  define  F(x)  x+1 /* c */\n#define F (x)", "#define F( x ) x + 1\n#define F ( x )"},
		"an apostrophe":       {"#error don't\nint a;", "#error don ' t\nint a ;"},
		"another machine":     {"#ifdef __aarch64__\nneon();\n#else\nplain();\n#endif", "plain ( ) ;"},
		"this machine":        {"#if defined(__x86_64__) && !defined _WIN32\nhere();\n#endif", "here ( ) ;"},
		"a flag":              {"#if defined(__AVX512__) or defined(__AVX256__) or defined(__NEON__)\na();\n#endif", "#if ( defined(__AVX512__) || defined(__AVX256__) )\na ( ) ;\n#endif"},
		"a flag and a machine": {
			"#if defined(__SVE__) && defined(__ARM_FEATURE_SVE)\na();\n#elif X\nb();\n#elif __HIP_PLATFORM_AMD__\nc();\n#else\nd();\n#endif",
			"#if X\nb ( ) ;\n#else\nd ( ) ;\n#endif",
		},
		"a certain elif":  {"#if A\na\n#elif 1\nb\n#elif C\nc\n#else\nd\n#endif", "#if A\na\n#else\nb\n#endif"},
		"nothing is left": {"#if 0\na\n#elif defined(__riscv)\nb\n#endif\nc", "c"},
		"nested":          {"#ifdef _WIN32\n#if A\na\n#else\nb\n#endif\n#else\n#ifndef A\nc\n#endif\n#endif", "#if ! defined(A)\nc\n#endif"},
		"arithmetic":      {"#if 2 * 3 - 1 >= 4 && !(1 == 2) && HIP_VERSION > 305 || (A + 1) > ~0\na\n#endif", "#if ( ( A + 1 ) > -1 )\na\n#endif"},
		"a call":          {"#if __has_include(<a/b.h>) || USE_ROCM\na\n#endif", "#if __has_include ( < a / b . h > )\na\n#endif"},
		"no condition":    {"#if A ? 1 : 0\na\n#elif )\nb\n#endif", "#if A ? 1 : 0\na\n#elif )\nb\n#endif"},
		"a division":      {"#if 1 / 0\na\n#endif", "#if 1 / 0\na\n#endif"},
		"brackets":        {"#if " + strings.Repeat("(", 1000) + "1\na\n#endif", "#if " + strings.TrimSpace(strings.Repeat("( ", 1000)) + " 1\na\n#endif"},
		"no #endif":       {"int a;\n#if A\n", "error: unterminated #if in line 2"},
		"no #if":          {"#else\n", "error: #else without #if in line 1"},
		"two of #else":    {"#if A\n#else\n#elif B\n#endif", "error: #elif without #if in line 3"},
		"no end":          {"a\n/* b\n", "error: unterminated comment in line 2"},
		"no quote":        {"\"a\n\"", "error: unterminated string in line 1"},
		"no raw end":      {"R\"x(a)\"", "error: unterminated raw string in line 1"},
		"a long mark":     {"R\"" + strings.Repeat("x", 20) + "(a)\"", "error: unterminated raw string in line 1"},
		"deep":            {deep, "error: #if in line 201 is nested too deeply"},
		"no text":         {"a\x00b", "error: not a text"},
		"huge":            {strings.Repeat(" ", maxFile+1), "error: too large"},
		"ends early":      {"'", "'"},
		"a backslash":     {"a \\", `a \`},
	} {
		if got := seen(c.text, x86); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// The same text for Arm, where NEON is what a flag decides, and AVX is not.
func TestTokensOfArm(t *testing.T) {
	const text = "#if defined(__AVX512__) or defined(__NEON__)\na\n#elif defined(__x86_64__)\nb\n#elif defined(__aarch64__)\nc\n#else\nd\n#endif"
	if got, want := seen(text, arm), "#if defined(__NEON__)\na\n#else\nc\n#endif"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Whatever the files are, they are read or refused.
func FuzzTokens(f *testing.F) {
	for _, text := range []string{"#if A\na\n#elif B && !C\n\"b\\\"\"\n#endif", "R\"x(\n)x\"", "1'0 '\\'' /**/ // \\\n b", "#define F(x) #x\n#if (1", "class A(B):\n  NAME = 'a'"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		files := small()
		files["csrc/adam/cpu_adam.cpp"], files["op_builder/builder.py"] = text, text
		for _, machine := range Machines() {
			if got, again := seen(text, machine), seen(text, machine); got != again {
				t.Errorf("%q, then %q", got, again)
			}
			_, _ = New(files).Op("cpu_adam", machine)
		}
	})
}
