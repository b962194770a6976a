package signing

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"strconv"
)

// The programs of a node: enforce.py, and the part that only a node with a policy compiles.
var (
	//go:embed enforce.py
	enforceSource string
	//go:embed sshsig.py
	verifierSource string
	//go:embed check.py
	checkSource string
)

// NodeSource is the Python source that precedes an agent that enforces policies.
func NodeSource() string {
	return "SIGNING = " + strconv.QuoteToASCII(JudgeSource()) + "\n\n\n" + enforceSource
}

// JudgeSource is the Python source of the judgement alone.
func JudgeSource() string { return verifierSource + "\n\n" + checkSource }

// VerifierDigest is the SHA-256 of the verifier that goes along to nodes whose ssh-keygen is too
// old.
func VerifierDigest() string {
	sum := sha256.Sum256([]byte(verifierSource))
	return hex.EncodeToString(sum[:])
}

// Reply is a node's judgement of a wheel.
type Reply struct {
	Signers []int `json:"signers"` // how many builders signed, for each policy: the driver's, then the node's
	Own     bool  `json:"own"`     // verified by dsbuild's verifier, because ssh-keygen is missing or too old
	// Verifier is the SHA-256 of the dsbuild that verified bundles of sigstore; "" if none was needed.
	Verifier string `json:"verifier"`
}

// Remark says in the report of a node which programs of dsbuild's verified the signatures.
func (r *Reply) Remark() []string {
	var remarks []string
	if r != nil && r.Own {
		remarks = append(remarks, "signatures verified by dsbuild's own verifier (sha256 "+VerifierDigest()+"): the node's ssh-keygen is missing, or older than 8.2")
	}
	if r != nil && r.Verifier != "" {
		remarks = append(remarks, "bundles of sigstore verified by a dsbuild that the driver sent (sha256 "+r.Verifier+")")
	}
	return remarks
}
