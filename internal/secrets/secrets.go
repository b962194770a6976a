// Package secrets hides secret values in foreign text. A value may be encoded: by a node in JSON, by a server in HTML
// or in a URL, by curl in base64. For that reason the text is cleaned and decoded before it is searched.
package secrets

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"html"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/dsbuild/dsbuild/internal/ui"
)

// Shortest is the minimum length of a secret of unknown kind. A shorter one would remove letters from every line.
const Shortest = 4

// shortestEncoded is the minimum length of base64 and hex digits that are searched for.
const shortestEncoded = 6

// Hider hides values. The nil Hider only cleans.
type Hider struct{ values []value }

type value struct {
	text, name string
	ignoreCase bool // hex digits
}

// Add hides a secret behind name.
func (h *Hider) Add(secret, name string) {
	for _, text := range []string{
		secret, ui.Clean(secret), ui.OneLine(secret), strings.ReplaceAll(secret, " ", "+"),
		strings.ReplaceAll(secret, "'", `'\''`), strings.ReplaceAll(secret, "'", `'"'"'`),
	} {
		h.add(text, name, false, 1)
	}
	if len(secret) >= Shortest {
		for _, text := range inBase64(secret) {
			h.add(text, name, false, shortestEncoded)
		}
		h.add(hex.EncodeToString([]byte(secret)), name, true, shortestEncoded)
	}
	// The longest value first: otherwise a prefix of another value would leave the rest of that value readable.
	slices.SortStableFunc(h.values, func(a, b value) int { return cmp.Compare(len(b.text), len(a.text)) })
}

func (h *Hider) add(text, name string, ignoreCase bool, least int) {
	known := func(v value) bool { return v.text == text }
	if len(text) >= least && !slices.ContainsFunc(h.values, known) {
		h.values = append(h.values, value{text, name, ignoreCase})
	}
}

// inBase64 returns the base64 digits of a secret at any position in a text, such as after a user name: for each of the
// three offsets in a group and both alphabets, the digits that depend on no other byte.
func inBase64(secret string) []string {
	var all []string
	for before, first := range []int{0, 2, 3} {
		text := base64.StdEncoding.EncodeToString(append(make([]byte, before), secret...))
		text = text[first : (before+len(secret))*8/6]
		all = append(all, text, strings.NewReplacer("+", "-", "/", "_").Replace(text))
	}
	// As a whole, or behind a user name, it also has the digits at its end.
	for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
		all = append(all, enc.EncodeToString([]byte(secret)), enc.WithPadding(base64.NoPadding).EncodeToString([]byte(secret)))
	}
	return all
}

// Login returns the user name and password of a URL, or its token, unchanged. The password may contain an @ that is not
// escaped.
func Login(address string) string {
	_, rest, _ := strings.Cut(address, "://")
	authority, _, _ := strings.Cut(rest, "/")
	return authority[:max(0, strings.LastIndexByte(authority, '@'))]
}

// Passwords returns the password of a URL, or its token, both unchanged and decoded, because a program may show it
// without the URL.
func Passwords(address string) []string {
	login := Login(address)
	_, password, both := strings.Cut(login, ":")
	if !both { // a token alone
		password = login
	}
	return []string{password, Decoded(password)}
}

// Decoded decodes a part of a URL. It returns a part that cannot be decoded unchanged.
func Decoded(part string) string {
	if text, err := url.PathUnescape(part); err == nil {
		return text
	}
	return part
}

// Hide cleans foreign text and replaces the secrets in it.
func (h *Hider) Hide(text string) string {
	text = ui.Clean(text)
	if h == nil || len(h.values) == 0 {
		return text
	}
	found := h.find(layer{text: []byte(text)}, maxDepth)
	if len(found) == 0 {
		return text
	}
	slices.SortStableFunc(found, func(a, b span) int { return cmp.Or(a.from-b.from, b.to-a.to) })
	var out strings.Builder
	end := 0
	for _, s := range found {
		if s.from >= end {
			out.WriteString(text[end:s.from] + s.name)
		}
		end = max(end, s.to)
	}
	return out.String() + text[end:]
}

// span is a secret in a text.
type span struct {
	from, to int
	name     string
}

// find returns where the secrets are in the text that a layer was decoded from. It decodes the layer up to depth times,
// each time one kind of escape, because a secret may contain what looks like an escape of another kind.
func (h *Hider) find(l layer, depth int) []span {
	var found []span
	for _, kind := range []byte(`%\&`) {
		if depth > 0 && bytes.IndexByte(l.text, kind) >= 0 {
			found = append(found, h.find(l.decode(kind), depth-1)...)
		}
	}
	lower := bytes.ToLower(l.text)
	if len(lower) != len(l.text) {
		lower = l.text
	}
	for _, v := range h.values {
		searched := l.text
		if v.ignoreCase {
			searched = lower
		}
		for at := 0; ; {
			i := bytes.Index(searched[at:], []byte(v.text))
			if i < 0 {
				break
			}
			found = append(found, span{l.begin(at + i), l.begin(at + i + len(v.text)), v.name})
			at += i + len(v.text)
		}
	}
	return found
}

// maxDepth is how often a text is decoded. A server may quote a URL that was a parameter of a URL.
const maxDepth = 2

// layer is a text after some decoding.
type layer struct {
	text []byte
	from []int // where each byte begins in the text that was given, and where that ends; without it, at the same place
}

func (l layer) begin(at int) int {
	if l.from == nil {
		return at
	}
	return l.from[at]
}

// decode decodes the escapes that begin with kind: URL, JSON or HTML escapes. It drops what
// Clean drops.
func (l layer) decode(kind byte) layer {
	out := layer{make([]byte, 0, len(l.text)), make([]int, 0, len(l.text)+1)}
	for i := 0; i < len(l.text); {
		decoded, n := string(l.text[i:i+1]), 1
		if l.text[i] == kind {
			if text, size := unescape(l.text[i:]); size > 0 {
				decoded, n = text, size
			}
		}
		for range len(decoded) {
			out.from = append(out.from, l.begin(i))
		}
		out.text = append(out.text, decoded...)
		i += n
	}
	out.from = append(out.from, l.begin(len(l.text)))
	return out.clean()
}

// clean drops the control characters that came out of the decoding.
func (l layer) clean() layer {
	if string(l.text) == ui.Clean(string(l.text)) {
		return l
	}
	out := layer{make([]byte, 0, len(l.text)), make([]int, 0, len(l.from))}
	for i := 0; i < len(l.text); {
		_, n := utf8.DecodeRune(l.text[i:])
		if c := l.text[i : i+n]; !utf8.Valid(c) || ui.Clean(string(c)) != "" {
			out.text, out.from = append(out.text, c...), append(out.from, l.from[i:i+n]...)
		}
		i += n
	}
	out.from = append(out.from, l.from[len(l.text)])
	return out
}

// maxEntity bounds the name of a character in HTML.
const maxEntity = 12

// unescape decodes the escape at the beginning of text, which has n bytes, or none.
func unescape(text []byte) (decoded string, n int) {
	switch {
	case text[0] == '%' && len(text) > 2:
		return unhex(text[1:3], 3)
	case text[0] == '&':
		if end := bytes.IndexByte(text[:min(len(text), maxEntity)], ';'); end > 0 {
			if decoded = html.UnescapeString(string(text[:end+1])); decoded != string(text[:end+1]) {
				return decoded, end + 1
			}
		}
	case text[0] == '\\' && len(text) > 1:
		switch c := text[1]; {
		case c == 'u' && len(text) > 5:
			return unescapeUTF16(text)
		case c == 'x' && len(text) > 3:
			return unhex(text[2:4], 4)
		case strings.IndexByte("ntrbf", c) >= 0:
			return string("\n\t\r\b\f"[strings.IndexByte("ntrbf", c)]), 2
		case c < '0' || c > '9' && c < 'A' || c > 'Z' && c < 'a' || c > 'z' && c < utf8.RuneSelf:
			return string(c), 2
		}
	}
	return "", 0
}

func unhex(digits []byte, n int) (string, int) {
	b, err := hex.DecodeString(string(digits))
	if err != nil {
		return "", 0
	}
	return string(b), n
}

// unescapeUTF16 decodes \uXXXX, or two of them that are one character.
func unescapeUTF16(text []byte) (string, int) {
	unit := func(at int) rune {
		if len(text) < at+6 || text[at] != '\\' || text[at+1] != 'u' {
			return -1
		}
		n, err := strconv.ParseUint(string(text[at+2:at+6]), 16, 16)
		if err != nil {
			return -1
		}
		return rune(n)
	}
	first := unit(0)
	switch {
	case first < 0:
		return "", 0
	case utf16.IsSurrogate(first) && unit(6) >= 0:
		return string(utf16.DecodeRune(first, unit(6))), 12
	}
	return string(first), 6
}
