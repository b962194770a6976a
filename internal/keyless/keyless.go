// Package keyless signs with an identity in place of a key: a certificate authority (Fulcio) gives
// the identity of a token a certificate for a key that lives for one signature, and a transparency
// log (Rekor) records it. The result is a bundle of sigstore.
package keyless

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"time"

	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/sign"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/release/signing/sigstore"
)

// The environment variables with a token: the token itself, or where GitHub Actions gives one to a
// job with the permission id-token: write.
const (
	tokenVariable   = "SIGSTORE_ID_TOKEN"
	requestURL      = "ACTIONS_ID_TOKEN_REQUEST_URL"
	requestVariable = "ACTIONS_ID_TOKEN_REQUEST_TOKEN"
)

const (
	audience     = "sigstore" // for whom Fulcio wants a token to be
	requestLimit = 30 * time.Second
	maxConfig    = 1 << 20
	maxToken     = 64 << 10
	retries      = 2
)

// Signer signs with the identity of a token from the environment.
type Signer struct {
	fulcio      root.Service
	logs        []root.Service
	timestamps  []root.Service
	trustedRoot *sigstore.TrustedRoot // verifies each bundle before it is returned; nil: nothing does
	token       func() (string, error)
	ctx         context.Context // of the command
}

// IsConfig reports whether a file looks like a signing config and not like an SSH key.
func IsConfig(file string) bool {
	text, err := sigstore.ReadFile(file, maxConfig)
	return err == nil && bytes.HasPrefix(bytes.TrimSpace(text), []byte("{"))
}

// Open reads a signing config of sigstore (signing_config.json), which names the services. If
// trusted_root.json lies beside it, each bundle is verified before it is returned. getenv reads the
// environment, which has the token: it never stands in an argument.
func Open(ctx context.Context, file string, getenv func(string) string) (*Signer, error) {
	text, err := sigstore.ReadFile(file, maxConfig)
	if err != nil {
		return nil, err
	}
	config, err := root.NewSigningConfigFromJSON(text)
	if err != nil {
		return nil, fmt.Errorf("%s is not a signing config of sigstore: %w", file, err)
	}
	s := &Signer{ctx: ctx, token: tokenSource(ctx, getenv)}
	if err := s.choose(config); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if s.token == nil {
		return nil, fault.WithHint(errors.New("there is no identity token"),
			"set "+tokenVariable+"; in GitHub Actions, give the job the permission id-token: write")
	}
	s.trustedRoot, err = sigstore.ReadTrustedRoot(filepath.Join(filepath.Dir(file), "trusted_root.json"))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return s, err
}

// choose chooses the services of a signing config.
func (s *Signer) choose(c *root.SigningConfig) error {
	now := time.Now()
	var err error
	if s.fulcio, err = root.SelectService(c.FulcioCertificateAuthorityURLs(), sign.FulcioAPIVersions, now); err != nil {
		return fmt.Errorf("no certificate authority: %w", err)
	}
	if s.logs, err = root.SelectServices(c.RekorLogURLs(), c.RekorLogURLsConfig(), sign.RekorAPIVersions, now); err != nil {
		return fmt.Errorf("no transparency log: %w", err)
	}
	if len(c.TimestampAuthorityURLs()) > 0 {
		if s.timestamps, err = root.SelectServices(c.TimestampAuthorityURLs(), c.TimestampAuthorityURLsConfig(), sign.TimestampAuthorityAPIVersions, now); err != nil {
			return fmt.Errorf("no timestamp authority: %w", err)
		}
	}
	for _, service := range append(append([]root.Service{s.fulcio}, s.logs...), s.timestamps...) {
		if err := checkURL(service.URL); err != nil {
			return err
		}
	}
	return nil
}

// checkURL refuses addresses to which a token would go in plain text.
func checkURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.User != nil:
		return fmt.Errorf("%q is not the address of a service", text)
	case u.Scheme == "https" || u.Scheme == "http" && (u.Hostname() == "localhost" || net.ParseIP(u.Hostname()).IsLoopback()):
		return nil
	}
	return fmt.Errorf("%s: the address must begin with https://", text)
}

// Sign returns a bundle with a signature of a message. Bundles have no namespaces.
func (s *Signer) Sign(message []byte, _ string) ([]byte, error) {
	token, err := s.token()
	if err != nil {
		return nil, err
	}
	key, err := sign.NewEphemeralKeypair(&sign.EphemeralKeypairOptions{Algorithm: protocommon.PublicKeyDetails_PKIX_ECDSA_P256_SHA_256})
	if err != nil {
		return nil, err
	}
	options := sign.BundleOptions{
		Context:                    s.ctx,
		CertificateProvider:        sign.NewFulcio(&sign.FulcioOptions{BaseURL: s.fulcio.URL, Timeout: requestLimit, Retries: retries}),
		CertificateProviderOptions: &sign.CertificateProviderOptions{IDToken: token},
	}
	for _, l := range s.logs {
		options.TransparencyLogs = append(options.TransparencyLogs, sign.NewRekor(&sign.RekorOptions{BaseURL: l.URL, Timeout: requestLimit, Retries: retries, Version: l.MajorAPIVersion}))
	}
	for _, t := range s.timestamps {
		options.TimestampAuthorities = append(options.TimestampAuthorities, sign.NewTimestampAuthority(&sign.TimestampAuthorityOptions{URL: t.URL, Timeout: requestLimit, Retries: retries}))
	}
	b, err := sign.Bundle(&sign.PlainData{Data: message}, key, options)
	if err != nil {
		return nil, err
	}
	text, err := protojson.Marshal(b)
	if err != nil {
		return nil, err
	}
	if s.trustedRoot != nil {
		if _, err := s.trustedRoot.Verify(text, message); err != nil {
			return nil, fmt.Errorf("the services returned a bundle that trusted_root.json does not accept: %w", err)
		}
	}
	return append(text, '\n'), nil
}

// tokenSource returns the function that gets a token for each signature, because a token is valid for
// minutes; nil if the environment has none.
func tokenSource(ctx context.Context, getenv func(string) string) func() (string, error) {
	token, address, bearer := getenv(tokenVariable), getenv(requestURL), getenv(requestVariable)
	switch {
	case token != "":
		return func() (string, error) { return token, nil }
	case address == "" || bearer == "":
		return nil
	}
	return func() (string, error) {
		token, err := requestToken(ctx, address, bearer)
		if err != nil {
			return "", fmt.Errorf("GitHub Actions gave no identity token: %w", err)
		}
		return token, nil
	}
}

// requestToken asks GitHub Actions for the token of a job.
func requestToken(ctx context.Context, address, bearer string) (string, error) {
	if err := checkURL(address); err != nil {
		return "", err
	}
	u, _ := url.Parse(address) // checkURL has parsed it
	query := u.Query()
	query.Set("audience", audience)
	u.RawQuery = query.Encode()
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return "", err
	}
	request.Header.Set("Authorization", "Bearer "+bearer)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", errors.New(response.Status)
	}
	var got struct {
		Value string `json:"value"`
	}
	err = json.NewDecoder(io.LimitReader(response.Body, maxToken)).Decode(&got)
	if err != nil || got.Value == "" {
		return "", cmp.Or(err, errors.New("the answer has none"))
	}
	return got.Value, nil
}

// Close does nothing: no key outlives its signature.
func (s *Signer) Close() {}
