package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// registry holds the settings of an image registry in Dagger's engine.json.
type registry struct {
	Mirrors  []string `json:"mirrors,omitempty"`  // tried first, in this order: host[:port][/path]
	HTTP     *bool    `json:"http,omitempty"`     // no TLS
	Insecure *bool    `json:"insecure,omitempty"` // TLS whose certificate is not verified
}

// siteConfig is the part of the engine's configuration that a site may set, in Dagger's own
// format.
type siteConfig struct {
	Registries map[string]registry `json:"registries,omitempty"`
}

// siteFile returns its path: ${XDG_CONFIG_HOME:-~/.config}/dsbuild/engine.json. It is a file and not
// a variable, because any command that needs the engine may start it.
func siteFile() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "dsbuild", "engine.json"), nil
}

// readSite reads the file of a site. Without the file it adds nothing.
func readSite(path string) (c siteConfig, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, err
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&c); err != nil {
		return c, fault.WithHint(fmt.Errorf("%s: %w", path, err),
			`it holds registries alone, each with mirrors, http or insecure: {"registries": {"docker.io": {"mirrors": ["mirror.example.org"]}}}; certificates belong in %s (then update-ca-certificates)`, extraCAs)
	}
	return c, nil
}

// engineConfig is the engine's engine.json. The cache is bounded: one CUDA
// toolchain takes about 16 GB.
func engineConfig(site siteConfig) (string, error) {
	b, err := json.Marshal(struct {
		LogLevel string            `json:"logLevel"`
		GC       map[string]string `json:"gc"`
		siteConfig
	}{"info", map[string]string{"maxUsedSpace": "40GB", "reservedSpace": "1GB", "minFreeSpace": "10GB"}, site})
	return string(b) + "\n", err
}

// findCertificates returns the host's certificate bundle: SSL_CERT_FILE if set, else the system's.
func findCertificates(getenv func(string) string) string {
	if own := getenv("SSL_CERT_FILE"); own != "" {
		return own
	}
	return hostCertificates
}

// proxyNames returns the names of the proxy variables.
func proxyNames() []string {
	return []string{"http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy"}
}

// proxyVariables returns the proxy variables of an environment, each in lower and upper case: apt
// reads only the lower case, and the engine passes only the upper case to its containers.
func proxyVariables(env []string) (out []string) {
	for _, name := range proxyNames() {
		var value string
		for _, spelling := range []string{name, strings.ToUpper(name)} { // curl's order
			i := slices.IndexFunc(env, func(kv string) bool { return strings.HasPrefix(kv, spelling+"=") })
			if value == "" && i >= 0 {
				_, value, _ = strings.Cut(env[i], "=")
			}
		}
		if value != "" {
			out = append(out, name+"="+value, strings.ToUpper(name)+"="+value)
		}
	}
	return out
}

// aptProxies adds the proxies of this host's apt configuration to an environment: the root file
// systems are downloaded in the same way.
func aptProxies(env []string, ask func(key string) string) []string {
	for _, scheme := range []string{"http", "https"} {
		proxy := ask("Acquire::" + scheme + "::Proxy")
		if proxy != "" && !strings.EqualFold(proxy, "direct") {
			env = append(env, scheme+"_proxy="+proxy) // after those of the environment, which win
		}
	}
	return proxyVariables(env)
}

// askApt reads a value of the configuration of this host's apt.
func askApt(key string) string {
	out, err := exec.Command("apt-config", "--format", "%v%n", "dump", key).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// loopbackProxy returns a proxy of the environment that listens only on this host, or "". The
// engine has its own network and cannot reach it. The result has no users and passwords.
func loopbackProxy(env []string) string {
	for _, kv := range proxyVariables(env) {
		name, value, _ := strings.Cut(kv, "=")
		if name == "no_proxy" || name == "NO_PROXY" {
			continue
		}
		if !strings.Contains(value, "://") {
			value = "http://" + value
		}
		u, err := url.Parse(value)
		if err != nil {
			continue
		}
		if ip := net.ParseIP(u.Hostname()); u.Hostname() == "localhost" || ip != nil && ip.IsLoopback() {
			return name + " (" + u.Host + ")"
		}
	}
	return ""
}
