package signing_test

import (
	"bytes"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/signingtest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/release/signing"
)

// A policy that is read trusts somebody, and demands a number of builders that it can have.
func FuzzPolicy(f *testing.F) {
	k := signingtest.NewKeys(f)
	for _, text := range []string{
		"signers: [{name: a, key: " + k.Public("a") + "}]\n",
		"signers:\n- {name: a, key: " + k.Public("a") + ", from: 2026-01-01, until: 2030-01-01}\n- {name: b, key: " + k.Public("b") + "}\nbuilders: 2\nminimum: 0.19.8\nsources: ['pkg:pypi/deepspeed@*']\nmax_age: 90d\ncompanions: accept\n",
		"revoked: [SHA256:x]\n",
		"signers: &a [*a]",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
		p, err := signing.ReadPolicy("-", bytes.NewReader(data), now)
		if err == nil && (p.Trusts(now) != nil || p.Builders < 1) {
			t.Errorf("%+v", p)
		}
	})
}

// Whatever replaces a piece of a signed statement or of its signature, only the statement that was
// signed is accepted.
func FuzzSigned(f *testing.F) {
	file, m, text := wheeltest.Built(f, f.TempDir(), wheeltest.Options{})
	k, statement := signingtest.NewKeys(f), string(text)
	good := signingtest.Accepted(f, k, filepath.Base(file), statement)[0]
	armored := good.Signed.Signatures[0]
	if _, err := good.Policy.Check(good.Signed, m.SHA256, time.Now()); err != nil {
		f.Fatal(err)
	}
	f.Add(uint16(0), uint16(0), "", uint16(0), uint16(0), "")
	f.Add(uint16(3), uint16(1), " ", uint16(0), uint16(0), "")
	f.Add(uint16(0), uint16(0), "", uint16(40), uint16(4), "AAAA")
	f.Add(uint16(0), uint16(9999), "{}", uint16(0), uint16(9999), "-----BEGIN SSH SIGNATURE-----\n-----END SSH SIGNATURE-----\n")
	f.Fuzz(func(t *testing.T, at, length uint16, piece string, signatureAt, signatureLength uint16, signaturePiece string) {
		signed := good.Signed
		signed.Statement = replacePiece(statement, at, length, piece)
		signed.Signatures = []string{replacePiece(armored, signatureAt, signatureLength, signaturePiece)}
		names, err := good.Policy.Check(signed, m.SHA256, time.Now())
		if err == nil && (signed.Statement != statement || !slices.Equal(names, []string{"a"})) {
			t.Errorf("%q signed by %q is accepted as of %q", signed.Statement, signed.Signatures, names)
		}
	})
}

// replacePiece returns text with piece in place of length bytes from at on.
func replacePiece(text string, at, length uint16, piece string) string {
	from := min(int(at), len(text))
	return text[:from] + piece + text[min(from+int(length), len(text)):]
}
