package pipeline

import (
	"bytes"
	"cmp"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/pyindex"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/wheel"
)

// Network holds a site's network settings: package indexes, proxies, certificates, the
// distribution's mirror, caches. Images, and steps that download or compile, get them as a secret.
// They are not part of a plan, so the wheel is the same at every site. The zero Network has no
// settings.
type Network struct {
	variables map[string]string
	ca        string // additional CA certificates, PEM
	toolkit   string // file of nvcc's package, checked
}

// Toolkit returns the file of the package with nvcc for CUDA 12. It returns "" if it is not set.
func (n Network) Toolkit() string { return n.toolkit }

// NetworkOptions are the site's settings on the command line. Unset options come from the
// environment variables of pip, uv and other programs.
type NetworkOptions struct {
	IndexURL       string   // the package index
	ExtraIndexURLs []string // additional indexes
	CA             string   // file of additional CA certificates
	NvccDeb        string   // file of Debian's package with nvcc 12.4
}

// networkError is an unusable setting of the site: name is the flag or variable.
func networkError(name, takes, format string, args ...any) error {
	return fault.New(fault.Usage, "set "+name+" to "+takes, name+": "+format, args...)
}

// NewNetwork reads the settings of the site; getenv is os.Getenv.
func NewNetwork(o NetworkOptions, getenv func(string) string) (Network, error) {
	n := Network{variables: map[string]string{}}
	// The variables that are passed on unchanged to the programs of a build.
	for _, name := range []string{
		"PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT", "PIP_RETRIES", "UV_INSECURE_HOST", "UV_HTTP_TIMEOUT", "UV_INDEX_STRATEGY",
		"CCACHE_REMOTE_STORAGE", "CCACHE_SECONDARY_STORAGE", "CCACHE_REMOTE_ONLY", "CCACHE_RESHARE",
	} {
		if v := getenv(name); v != "" {
			n.variables[name] = v
		}
	}
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"} {
		// Programs disagree about the case they read.
		if v := cmp.Or(getenv(strings.ToLower(name)), getenv(name)); v != "" {
			n.variables[name], n.variables[strings.ToLower(name)] = v, v
		}
	}
	if err := n.setIndexes(o, getenv); err != nil {
		return Network{}, err
	}
	prefix := cmp.Or(getenv(torchIndexes), torchIndex)
	if err := checkURL(torchIndexes, prefix); err != nil {
		return Network{}, err
	}
	n.variables[torchIndexes] = strings.TrimRight(prefix, "/")
	if mirror := getenv(aptMirror); mirror != "" {
		if err := checkURL(aptMirror, mirror); err != nil {
			return Network{}, err
		}
		if strings.ContainsAny(mirror, `#&\ `) {
			const why = `invalid character #, & or \ in the URL: write %23, %26, %5C`
			return Network{}, networkError(aptMirror, urlLike(aptMirror), "%s", why)
		}
		n.variables[aptMirror] = strings.TrimRight(mirror, "/")
	}
	if err := n.setNvcc(o.NvccDeb); err != nil {
		return Network{}, err
	}
	return n, n.readCertificates(o.CA, getenv("SSL_CERT_FILE"))
}

// setNvcc checks the file of nvcc's package: the scripts accept only the pinned bytes.
func (n *Network) setNvcc(file string) error {
	if file == "" {
		return nil
	}
	const flag = "--nvcc-deb"
	want := dockerfiles.NvccSHA256()
	takes := "Debian's package nvidia-cuda-toolkit 12.4.131~12.4.1-2 for amd64, a .deb with sha256 " + want
	path, err := filepath.Abs(file)
	if err != nil {
		return err
	}
	sum, _, err := wheel.HashFile(path)
	if err != nil {
		return networkError(flag, takes, "%w", err)
	}
	if sum != want {
		return networkError(flag, takes, "%s has different content: its sha256 is %s", file, sum)
	}
	n.toolkit, n.variables["DSBUILD_TOOLKIT_DEB"] = path, path
	return nil
}

// aptMirror is the variable with the URL prefix of the distribution's archives: debian,
// debian-security, ubuntu.
const aptMirror = "DSBUILD_APT_MIRROR"

// setIndexes sets the package indexes for pip and uv.
func (n *Network) setIndexes(o NetworkOptions, getenv func(string) string) error {
	index, from := o.IndexURL, "--index-url"
	for _, name := range []string{"UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"} {
		if index == "" {
			index, from = getenv(name), name
		}
	}
	extra, extraFrom := o.ExtraIndexURLs, "--extra-index-url"
	for _, name := range []string{"UV_INDEX", "UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL"} {
		if len(extra) == 0 {
			extra, extraFrom = strings.Fields(getenv(name)), name
		}
	}
	if index != "" {
		index = withoutIndexName(index)
		if err := checkURL(from, index); err != nil {
			return err
		}
		n.variables["PIP_INDEX_URL"], n.variables["UV_DEFAULT_INDEX"] = index, index
	}
	all := make([]string, len(extra))
	for i, e := range extra {
		all[i] = withoutIndexName(e)
		if err := checkURL(extraFrom, all[i]); err != nil {
			return err
		}
	}
	if len(all) > 0 {
		joined := strings.Join(all, " ")
		n.variables["PIP_EXTRA_INDEX_URL"], n.variables["UV_INDEX"] = joined, joined
	}
	return nil
}

// torchIndexes is the variable with the URL prefix of torch's own indexes: cu126, cu128.
const torchIndexes = "DSBUILD_TORCH_INDEX"

// withoutIndexName removes the name of an index in uv's form NAME=URL.
func withoutIndexName(index string) string {
	if name, rest, ok := strings.Cut(index, "="); ok && !strings.ContainsAny(name, ":/") {
		return rest
	}
	return index
}

// checkURL never includes a URL in its error, because it may contain a password.
func checkURL(from, text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return networkError(from, urlLike(from), "not an HTTP or HTTPS URL")
	}
	return nil
}

// urlLike describes a valid URL of a setting, with an example.
func urlLike(name string) string {
	if name == aptMirror {
		return "a URL such as https://mirror.example.org/apt, with the directories debian and ubuntu"
	}
	if name == torchIndexes {
		return "a URL such as https://mirror.example.org/torch, with the directory cu126/torch/"
	}
	return "the URL of a package index such as https://pypi.example.org/simple, or https://USER:PASSWORD@host/...; " +
		"percent-encode other characters than letters and digits in a password: @ is %40"
}

// maxCA limits the size of a file of certificates; a distribution's file has 0.2 MiB.
const maxCA = 4 << 20

// caLike describes a valid value of --ca.
const caLike = "a PEM file of certificates: " +
	"base64 lines between -----BEGIN CERTIFICATE----- and -----END CERTIFICATE-----"

// readCertificates reads the certificates of --ca, else those that the user's programs trust.
func (n *Network) readCertificates(flag, variable string) error {
	name, path := "--ca", flag
	if path == "" {
		name, path = "SSL_CERT_FILE", variable
	}
	if path == "" {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return networkError(name, caLike, "%w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxCA+1))
	if err != nil {
		return networkError(name, caLike, "%w", err)
	}
	if len(text) > maxCA {
		return networkError(name, caLike, "%s is larger than %d MiB: not a file of certificates", path, maxCA>>20)
	}
	var out bytes.Buffer
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" { // never a private key in the same file
			if err := pem.Encode(&out, &pem.Block{Type: block.Type, Bytes: block.Bytes}); err != nil {
				return err
			}
		}
	}
	if out.Len() == 0 {
		return networkError(name, caLike, "%s contains no PEM certificate", path)
	}
	n.ca = out.String()
	return nil
}

// FileIndexes returns the indexes that may have a lock's files: the additional indexes, which uv
// queries first, and the package index.
func (n Network) FileIndexes() []string {
	return append(strings.Fields(n.variables["UV_INDEX"]), cmp.Or(n.variables["UV_DEFAULT_INDEX"], packageIndex))
}

// IndexClient returns a client for the site's indexes.
func (n Network) IndexClient() *pyindex.Client { return pyindex.New(n.Transport()) }

// TorchIndex returns the URL prefix of torch's own indexes.
func (n Network) TorchIndex() string { return cmp.Or(n.variables[torchIndexes], torchIndex) }

// Programs returns the environment with which local programs, such as uv, reach the site's services:
// environ without other settings for them. They trust the system's certificates, as curl and git do, not
// only bundled ones, because a proxy of the site may sign for every host. Additional certificates are
// written to dir.
func (n Network) Programs(environ []string, dir string) ([]string, error) {
	var out []string
	for _, v := range environ {
		if !strings.HasPrefix(v, "UV_") && !strings.HasPrefix(v, "PIP_") && !strings.HasPrefix(v, "VIRTUAL_ENV=") {
			out = append(out, v)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(n.variables)) {
		out = append(out, name+"="+n.variables[name])
	}
	out = append(out, "UV_PYTHON_DOWNLOADS=never", "UV_NO_CONFIG=1")
	var file string // of the system's certificates, as dockerfiles/site.sh looks for it
	var system []byte
	for _, name := range []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"} {
		if text, err := os.ReadFile(name); err == nil {
			file, system = name, text
			break
		}
	}
	switch own := func(v string) bool { return strings.HasPrefix(v, "SSL_CERT_") }; {
	case n.ca == "" && (file == "" || slices.ContainsFunc(environ, own)):
		return out, nil
	case n.ca == "":
		return append(out, "SSL_CERT_FILE="+file), nil
	}
	bundle := append(append(system, '\n'), n.ca...)
	path := filepath.Join(dir, "certificates.pem")
	return append(out, "SSL_CERT_FILE="+path), os.WriteFile(path, bundle, 0o600)
}

// Script returns the text that dockerfiles/site.sh reads: the settings as shell assignments. It
// holds passwords.
func (n Network) Script() string {
	var b strings.Builder
	b.WriteString("# settings of the site\n")
	for _, name := range slices.Sorted(maps.Keys(n.variables)) {
		fmt.Fprintf(&b, "export %s=%s\n", name, remote.Quote(n.variables[name]))
	}
	if n.ca != "" {
		fmt.Fprintf(&b, "DSBUILD_CA=%s\n", remote.Quote(n.ca))
	}
	return b.String()
}
