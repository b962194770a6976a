// Package sigstoretest is a sigstore of its own for tests: a certificate authority (Fulcio) and a
// transparency log (Rekor) in this process, and the files that name and trust them.
package sigstoretest

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-openapi/runtime"
	ct "github.com/google/certificate-transparency-go"
	"github.com/google/certificate-transparency-go/tls"
	ctx509 "github.com/google/certificate-transparency-go/x509"
	"github.com/sigstore/rekor/pkg/generated/models"
	"github.com/sigstore/rekor/pkg/types"
	_ "github.com/sigstore/rekor/pkg/types/dsse/v0.0.1"
	_ "github.com/sigstore/rekor/pkg/types/hashedrekord/v0.0.1"
	"github.com/sigstore/rekor/pkg/util"
	"github.com/sigstore/sigstore-go/pkg/sign"
	"github.com/sigstore/sigstore/pkg/signature"
	"google.golang.org/protobuf/encoding/protojson"
)

// Issuer is the issuer of the tokens that Token makes, unless a test says otherwise.
const Issuer = "https://token.example.org"

// Server is a Fulcio and a Rekor.
type Server struct {
	URL string
	// Certify changes a certificate before it is signed; nil: nothing does.
	Certify func(*x509.Certificate)
	// Secret leaves the promise of the certificate log out of certificates.
	Secret bool
	// Clock says when the log records an entry.
	Clock func() time.Time

	t         testing.TB
	authority *x509.Certificate
	caKey     *ecdsa.PrivateKey
	logKey    *ecdsa.PrivateKey
}

// New starts a Server, which ends with the test.
func New(t testing.TB) *Server {
	t.Helper()
	s := &Server{Clock: time.Now, t: t, caKey: newKey(t), logKey: newKey(t)}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root of a test"},
		NotBefore: time.Now().AddDate(-5, 0, 0), NotAfter: time.Now().AddDate(5, 0, 0),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}
	s.authority = s.issue(template, template, &s.caKey.PublicKey)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/v2/signingCert", s.handle(s.certify))
	mux.HandleFunc("POST /api/v1/log/entries", s.handle(s.record))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	s.URL = server.URL
	return s
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	return key
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// issue signs a certificate.
func (s *Server) issue(template, parent *x509.Certificate, public crypto.PublicKey) *x509.Certificate {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, s.caKey)
	if err != nil {
		s.t.Error(err)
		return nil
	}
	cert, err := x509.ParseCertificate(der)
	s.check(err)
	return cert
}

// handle answers a request, or says what is wrong with it.
func (s *Server) handle(do func(*http.Request, http.ResponseWriter) (any, int, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		answer, status, err := do(r, w)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(answer) // the client has gone
	}
}

// certificateRequest asks Fulcio to certify a key: by the key and a signature of the token's subject, or
// by a request that the key has signed.
type certificateRequest struct {
	PublicKeyRequest struct {
		PublicKey struct {
			Content string `json:"content"`
		} `json:"publicKey"`
		Proof []byte `json:"proofOfPossession"`
	} `json:"publicKeyRequest"`
	Request []byte `json:"certificateSigningRequest"`
}

// key returns the key, of which the caller must have the private half.
func (r certificateRequest) key(subject string) (*ecdsa.PublicKey, error) {
	if block, _ := pem.Decode(r.Request); block != nil {
		request, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			return nil, err
		}
		key, _ := request.PublicKey.(*ecdsa.PublicKey)
		return key, request.CheckSignature()
	}
	block, _ := pem.Decode([]byte(r.PublicKeyRequest.PublicKey.Content))
	if block == nil {
		return nil, errors.New("no public key")
	}
	public, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	key, ok := public.(*ecdsa.PublicKey)
	sum := sha256.Sum256([]byte(subject))
	if !ok || !ecdsa.VerifyASN1(key, sum[:], r.PublicKeyRequest.Proof) {
		return nil, errors.New("no proof of possession")
	}
	return key, nil
}

// certify gives the identity of a token a certificate for ten minutes, as Fulcio does.
func (s *Server) certify(r *http.Request, _ http.ResponseWriter) (any, int, error) {
	var asked certificateRequest
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		return nil, 0, err
	}
	issuer, subject, err := readToken(r.Header.Get("Authorization"))
	if err != nil {
		return nil, 0, err
	}
	key, err := asked.key(subject)
	if err != nil {
		return nil, 0, err
	}
	template := s.template(issuer, subject)
	cert := s.issue(template, s.authority, key)
	if !s.Secret {
		template.ExtraExtensions = append(template.ExtraExtensions, s.promise(cert))
		cert = s.issue(template, s.authority, key)
	}
	var chain []string
	for _, c := range []*x509.Certificate{cert, s.authority} {
		chain = append(chain, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})))
	}
	return map[string]any{"signedCertificateEmbeddedSct": map[string]any{"chain": map[string]any{"certificates": chain}}}, http.StatusOK, nil
}

// template is the certificate of an identity.
func (s *Server) template(issuer, subject string) *x509.Certificate {
	value, err := asn1.MarshalWithParams(issuer, "utf8")
	s.check(err)
	now := time.Now()
	c := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), NotBefore: now.Add(-time.Minute), NotAfter: now.Add(10 * time.Minute),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning},
		ExtraExtensions: []pkix.Extension{ // the issuer, in Fulcio's first form and in its second
			{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 1}, Value: []byte(issuer)},
			{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 8}, Value: value},
		},
	}
	if u, err := url.Parse(subject); err == nil && u.Host != "" {
		c.URIs = []*url.URL{u}
	} else {
		c.EmailAddresses = []string{subject}
	}
	if s.Certify != nil {
		s.Certify(c)
	}
	return c
}

// promise is the promise of the certificate log (SCT) to publish a certificate, as an extension of it. The
// log has the key of the transparency log.
func (s *Server) promise(cert *x509.Certificate) pkix.Extension {
	t := ct.SignedCertificateTimestamp{SCTVersion: ct.V1, LogID: ct.LogID{KeyID: sha256.Sum256(s.logKeyDER())}, Timestamp: uint64(time.Now().UnixMilli())}
	entry := ct.LogEntry{Leaf: ct.MerkleTreeLeaf{Version: ct.V1, LeafType: ct.TimestampedEntryLeafType, TimestampedEntry: &ct.TimestampedEntry{
		Timestamp: t.Timestamp, EntryType: ct.PrecertLogEntryType,
		PrecertEntry: &ct.PreCert{IssuerKeyHash: sha256.Sum256(s.authority.RawSubjectPublicKeyInfo), TBSCertificate: cert.RawTBSCertificate},
	}}}
	input, err := ct.SerializeSCTSignatureInput(t, entry)
	s.check(err)
	sum := sha256.Sum256(input)
	sig, err := ecdsa.SignASN1(rand.Reader, s.logKey, sum[:])
	s.check(err)
	t.Signature = ct.DigitallySigned{Algorithm: tls.SignatureAndHashAlgorithm{Hash: tls.SHA256, Signature: tls.ECDSA}, Signature: sig}
	one, err := tls.Marshal(t)
	s.check(err)
	list, err := tls.Marshal(ctx509.SignedCertificateTimestampList{SCTList: []ctx509.SerializedSCT{{Val: one}}})
	s.check(err)
	value, err := asn1.Marshal(list)
	s.check(err)
	return pkix.Extension{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 11129, 2, 4, 2}, Value: value}
}

// check reports an error from a handler, which must not end the test itself.
func (s *Server) check(err error) {
	if err != nil {
		s.t.Error(err)
	}
}

// Sign returns a bundle with a signature of a message by a subject of an issuer, as cosign sign-blob
// makes one.
func (s *Server) Sign(issuer, subject, message string) string {
	return s.bundle(&sign.PlainData{Data: []byte(message)}, issuer, subject)
}

// Envelop returns a bundle with an envelope around a message, as cosign attest-blob makes one.
func (s *Server) Envelop(issuer, subject, message, payloadType string) string {
	return s.bundle(&sign.DSSEData{Data: []byte(message), PayloadType: payloadType}, issuer, subject)
}

func (s *Server) bundle(content sign.Content, issuer, subject string) string {
	s.t.Helper()
	key, err := sign.NewEphemeralKeypair(nil)
	must(s.t, err)
	b, err := sign.Bundle(content, key, sign.BundleOptions{
		CertificateProvider:        sign.NewFulcio(&sign.FulcioOptions{BaseURL: s.URL}),
		CertificateProviderOptions: &sign.CertificateProviderOptions{IDToken: Token(issuer, subject)},
		TransparencyLogs:           []sign.Transparency{sign.NewRekor(&sign.RekorOptions{BaseURL: s.URL})},
	})
	must(s.t, err)
	text, err := protojson.Marshal(b)
	must(s.t, err)
	return string(text)
}

// Token is a token of an issuer for a subject, signed by nobody: this Fulcio believes everybody.
func Token(issuer, subject string) string {
	part := func(v map[string]any) string {
		text, _ := json.Marshal(v) // texts and numbers alone
		return base64.RawURLEncoding.EncodeToString(text)
	}
	now := time.Now().Unix()
	return part(map[string]any{"alg": "none"}) + "." + part(map[string]any{"iss": issuer, "sub": subject, "aud": "sigstore", "iat": now, "exp": now + 600}) + "."
}

func readToken(header string) (issuer, subject string, err error) {
	parts := strings.Split(strings.TrimPrefix(header, "Bearer "), ".")
	if len(parts) != 3 {
		return "", "", errors.New("no token")
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return "", "", err
	}
	var claims struct{ Iss, Sub, Aud string }
	if err := json.Unmarshal(text, &claims); err != nil || claims.Aud != "sigstore" {
		return "", "", errors.Join(err, errors.New("a token for somebody else"))
	}
	return claims.Iss, claims.Sub, nil
}

// record records an entry, as Rekor does. Each entry has a tree of its own, behind an entry that all
// trees have.
func (s *Server) record(r *http.Request, w http.ResponseWriter) (any, int, error) {
	proposed, err := models.UnmarshalProposedEntry(r.Body, runtime.JSONConsumer())
	if err != nil {
		return nil, 0, err
	}
	entry, err := types.CreateVersionedEntry(proposed)
	if err != nil {
		return nil, 0, err
	}
	body, err := types.CanonicalizeEntry(r.Context(), entry)
	if err != nil {
		return nil, 0, err
	}
	first, leaf := sha256.Sum256([]byte{0}), sha256.Sum256(append([]byte{0}, body...))
	tree := sha256.Sum256(slices.Concat([]byte{1}, first[:], leaf[:]))
	signer, err := signature.LoadECDSASigner(s.logKey, crypto.SHA256)
	if err != nil {
		return nil, 0, err
	}
	checkpoint, err := util.CreateAndSignCheckpoint(r.Context(), "rekor.test", 1, 2, tree[:], signer)
	if err != nil {
		return nil, 0, err
	}
	promised := map[string]any{"body": base64.StdEncoding.EncodeToString(body), "integratedTime": s.Clock().Unix(), "logID": s.logID(), "logIndex": 1}
	text, err := json.Marshal(promised) // sorted, and without spaces: canonical
	if err != nil {
		return nil, 0, err
	}
	promise, err := signer.SignMessage(bytes.NewReader(text))
	if err != nil {
		return nil, 0, err
	}
	promised["verification"] = map[string]any{
		"signedEntryTimestamp": base64.StdEncoding.EncodeToString(promise),
		"inclusionProof":       map[string]any{"treeSize": 2, "logIndex": 1, "rootHash": hex.EncodeToString(tree[:]), "hashes": []string{hex.EncodeToString(first[:])}, "checkpoint": string(checkpoint)},
	}
	id := hex.EncodeToString(leaf[:])
	w.Header().Set("ETag", id)
	w.Header().Set("Location", "/api/v1/log/entries/"+id)
	return map[string]any{id: promised}, http.StatusCreated, nil
}

func (s *Server) logKeyDER() []byte {
	der, err := x509.MarshalPKIXPublicKey(&s.logKey.PublicKey)
	s.check(err)
	return der
}

func (s *Server) logID() string {
	sum := sha256.Sum256(s.logKeyDER())
	return hex.EncodeToString(sum[:])
}

// WriteFiles writes signing_config.json and trusted_root.json into a folder, and returns the path of
// the first.
func (s *Server) WriteFiles(folder string) string {
	s.t.Helper()
	config := filepath.Join(folder, "signing_config.json")
	must(s.t, os.WriteFile(config, []byte(s.Config()), 0o600))
	must(s.t, os.WriteFile(filepath.Join(folder, "trusted_root.json"), []byte(s.TrustedRoot()), 0o600))
	return config
}

// Config is a signing config that names this server.
func (s *Server) Config() string {
	return fmt.Sprintf(`{"mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json",
  "caUrls": [{"url": %[1]q, "majorApiVersion": 1, "validFor": {"start": "2020-01-01T00:00:00Z"}, "operator": "test"}],
  "rekorTlogUrls": [{"url": %[1]q, "majorApiVersion": 1, "validFor": {"start": "2020-01-01T00:00:00Z"}, "operator": "test"}],
  "rekorTlogConfig": {"selector": "ANY"}}
`, s.URL)
}

// TrustedRoot is a trusted root with this server's authority and its logs.
func (s *Server) TrustedRoot() string {
	id, err := hex.DecodeString(s.logID())
	s.check(err)
	encode := base64.StdEncoding.EncodeToString
	log := fmt.Sprintf(`[{"baseUrl": "https://rekor.test", "hashAlgorithm": "SHA2_256", "logId": {"keyId": %q},
    "publicKey": {"rawBytes": %q, "keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": {"start": "2020-01-01T00:00:00Z"}}}]`, encode(id), encode(s.logKeyDER()))
	return fmt.Sprintf(`{"mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1", "tlogs": %[1]s, "ctlogs": %[1]s,
  "certificateAuthorities": [{"subject": {"organization": "test", "commonName": "root of a test"}, "uri": "https://fulcio.test",
    "certChain": {"certificates": [{"rawBytes": %[2]q}]}, "validFor": {"start": "2020-01-01T00:00:00Z"}}]}
`, log, encode(s.authority.Raw))
}

// Actions is a server that gives out a token as GitHub Actions does, to whom has the bearer.
func Actions(t testing.TB, bearer, token string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+bearer || r.URL.Query().Get("audience") != "sigstore" || r.URL.Query().Get("job") != "1" {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, `{"value": "`+token+`"}`)
	}))
	t.Cleanup(server.Close)
	return server.URL + "/?job=1"
}
