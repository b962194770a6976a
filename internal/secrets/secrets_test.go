package secrets_test

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/dsbuild/dsbuild/internal/secrets"
)

// each writes every byte of a text by a format.
func each(text, format string) string {
	var out strings.Builder
	for _, b := range []byte(text) {
		fmt.Fprintf(&out, format, b)
	}
	return out.String()
}

// A secret is hidden in every spelling in which a program may write it, and the text around it stays.
func TestHide(t *testing.T) {
	t.Parallel()
	for _, secret := range []string{"p@ss/w0rd", "hunter22", "päss & wörd", `a"b<c>&d'e`, `it's 100%2f \n`, "clef-🔑-42", "ghp_abcDEF0123456789", "a+b c/d=e"} {
		var h secrets.Hider
		h.Add(secret, "[S]")
		quoted, err := json.Marshal(secret)
		if err != nil {
			t.Fatal(err)
		}
		inJSON := strings.Trim(string(quoted), `"`)
		var units strings.Builder
		for _, r := range secret {
			if r > 0xffff {
				r -= 0x10000
				fmt.Fprintf(&units, `\u%04X\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
			} else {
				fmt.Fprintf(&units, `\u%04x`, r)
			}
		}
		percent := url.QueryEscape(secret)
		middle := len(secret) / 2
		for !utf8.RuneStart(secret[middle]) {
			middle++
		}
		for spelling, text := range map[string]string{
			"as is":                   secret,
			"JSON":                    inJSON,
			"JSON, all escaped":       units.String(),
			"JSON with slashes":       strings.ReplaceAll(inJSON, "/", `\/`),
			"JSON in JSON":            strings.ReplaceAll(strings.ReplaceAll(inJSON, `\`, `\\`), `"`, `\"`),
			"HTML":                    html.EscapeString(secret),
			"HTML in JSON":            strings.ReplaceAll(html.EscapeString(secret), `\`, `\\`),
			"HTML numbers":            each(secret, "&#%d;"),
			"HTML hex":                each(secret, "&#x%X;"),
			"percent":                 percent,
			"percent, lower case":     strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(percent, "%2F", "%2f"), "%3D", "%3d"), "%C3", "%c3"),
			"percent path":            url.PathEscape(secret),
			"percent, all of it":      each(secret, "%%%02X"),
			"percent, all lower case": each(secret, "%%%02x"),
			"percent twice":           url.QueryEscape(percent),
			"percent, a part":         each(secret[:middle], "%%%02x") + strings.ReplaceAll(strings.ReplaceAll(secret[middle:], "%", "%25"), "+", "%2B"),
			"as bytes":                each(secret, `\x%02x`),
			"hex":                     hex.EncodeToString([]byte(secret)),
			"HEX":                     strings.ToUpper(hex.EncodeToString([]byte(secret))),
			"base64":                  base64.StdEncoding.EncodeToString([]byte(secret)),
			"base64 for URLs":         base64.URLEncoding.EncodeToString([]byte(secret)),
			"base64 without =":        base64.RawStdEncoding.EncodeToString([]byte(secret)),
			"cut by a zero-width":     secret[:1] + "\u200b" + secret[1:],
			"cut by a color":          secret[:3] + "\x1b[31m" + secret[3:],
			"cut, in JSON":            secret[:1] + `\u200b` + inJSON[1:],
			"cut, in a URL":           secret[:1] + "%E2%80%8B" + url.PathEscape(secret[1:]),
		} {
			if spelling == "HTML numbers" || spelling == "HTML hex" {
				if strings.ContainsFunc(secret, func(r rune) bool { return r > 0x7f }) {
					continue // they count characters, not bytes
				}
			}
			if got := h.Hide("before " + text + " behind"); got != "before [S] behind" {
				t.Errorf("%q, %s: %q gives %q", secret, spelling, text, got)
			}
		}
		for _, user := range []string{"", "a", "ab", "abc", "token"} {
			for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.RawURLEncoding} {
				text := enc.EncodeToString([]byte(user + ":" + secret + "@"))
				back := strings.Split(h.Hide(text), "[S]")
				for i, rest := range back { // at most the first and the last byte of the secret can be told
					if len(back) != 2 || i == 0 && len(rest) > (len(user)+1)*4/3+1 || i == 1 && len(rest) > 5 {
						t.Errorf("%q in base64 behind %q: %q", secret, user, back)
					}
				}
			}
		}
	}
}

func TestHideLeavesTheRest(t *testing.T) {
	t.Parallel()
	var h secrets.Hider
	for secret, name := range map[string]string{"abcdef-ghi": "[A]", "abcdef-ghi-jkl": "[B]", "ghi-jkl-mno": "[C]", "abc": "[D]"} {
		h.Add(secret, name)
	}
	for text, want := range map[string]string{
		"abcdef-ghi abcdef-ghi-jkl":    "[A] [B]",
		"abcdef-ghi-jkl-mno":           "[B]",
		"abcdef-ghiabcdef-ghi":         "[A][A]",
		"616263 YWJj":                  "616263 YWJj", // a short secret in other digits: every text may have them
		`100% of \ & and %zz \u12 &x;`: `100% of \ & and %zz \u12 &x;`,
		`\ud83d`:                       `\ud83d`,
		"50%":                          "50%",
		"\u202etxt\x1b[2J":             "txt",
	} {
		if got := h.Hide(text); got != want {
			t.Errorf("%q gives %q, want %q", text, got, want)
		}
	}
	if got := (*secrets.Hider)(nil).Hide("a\x1b[31mb"); got != "ab" {
		t.Errorf("without secrets: %q", got)
	}
}

func FuzzHide(f *testing.F) {
	f.Add("hunter22", `%68unter22 \u0068unter22 &#104;unter22 \ud83d &`)
	f.Fuzz(func(t *testing.T, secret, text string) {
		if len(secret) < secrets.Shortest {
			return
		}
		var h secrets.Hider
		h.Add(secret, "")
		if got := h.Hide(text); strings.Contains(got, secret) && !strings.Contains(secret, got) && len(got) > len(text)*4 {
			t.Errorf("%q in %q: %q", secret, text, got)
		}
	})
}
