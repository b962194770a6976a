package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/release/signing"
)

func newSignCommand(a *app) *cobra.Command {
	var keyFile string
	cmd := &cobra.Command{
		Use:   "sign WHEEL...",
		Short: "Sign wheels with an SSH key",
		Long: `Sign wheels with an SSH key.

The signature of the provenance attestation next to a wheel is written to
WHEEL.provenance.json.ID.sig. The attestation contains the wheel's SHA-256, so
the signature covers the wheel too. Several builders can sign the same wheel.

KEY is a private key, or the .pub file of a key in the SSH agent, which can be a
FIDO security key. If KEY-cert.pub exists, the key signs with that certificate.
Passphrases are read from the terminal.`,
		Example: `  # Sign a wheel
  $ dsbuild sign --key ~/.ssh/id_ed25519 dist/deepspeed-*.whl`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return runSign(cmd.Context(), a, args, keyFile) },
	}
	cmd.Flags().StringVar(&keyFile, "key", "", "`KEY` SSH private key, or the .pub file of a key in the SSH agent (required)")
	return cmd
}

func runSign(ctx context.Context, a *app, files []string, keyFile string) error {
	if keyFile == "" {
		return usagef("missing --key KEY")
	}
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil {
			return noWheel(err)
		}
		if !info.Mode().IsRegular() {
			return usagef("%s is not a file", file)
		}
		if err := signing.RequireStatement(file); err != nil {
			return err
		}
	}
	key, err := a.openKey(ctx, keyFile)
	if err != nil {
		return err
	}
	defer key.Close()
	for _, file := range files {
		path, err := signing.Sign(file, key)
		if err == nil {
			err = pipeline.UpdateSums(ctx, file)
		}
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(a.stdout, "%s\n", ui.Clean(relativePath(path))); err != nil {
			return err
		}
	}
	return nil
}

// openKey opens a key for signing, and prompts for its passphrase on the terminal.
func (a *app) openKey(ctx context.Context, file string) (*remote.Key, error) {
	key, err := remote.NewAnswers(a.prompt).OpenKey(ctx, file)
	return key, fault.WithCode(err, exitUsage)
}

// wheelSigner returns the function that signs wheels for --sign, or nil without a key. The key is
// opened before anything is built.
func (a *app) wheelSigner(ctx context.Context, file string) (sign func(path string) error, done func(), err error) {
	if file == "" {
		return nil, func() {}, nil
	}
	key, err := a.openKey(ctx, file)
	if err != nil {
		return nil, nil, err
	}
	return func(path string) error {
		_, err := signing.Sign(path, key)
		return fault.AddHint(err, "to sign it later, run: dsbuild sign --key KEY WHEEL")
	}, key.Close, nil
}

// readPolicy reads a policy, or standard input for "-". It returns nil if file is empty.
func (a *app) readPolicy(file string) (*signing.Policy, error) {
	if file == "" {
		return nil, nil
	}
	return signing.ReadPolicy(file, a.stdin, time.Now())
}

// policyCheck is the name of the policy check among the checks of a wheel.
const policyCheck = "policy"
