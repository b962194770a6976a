package hostbuilder

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// The steps run in a clean environment, because variables of the user's shell would change the
// result of the build. Besides the settings of pipeline.Network, two groups of variables are passed
// on: PATH and LD_LIBRARY_PATH, which loading a module changes, and the user's settings for the indexes.

// siteVariables are the settings of a site: proxies, certificates, indexes.
var siteVariables = regexp.MustCompile(`^(` + strings.Join([]string{
	`(?i:https?|no|all|ftp)_(?i:proxy)`,
	`SSL_CERT_(FILE|DIR)`, `REQUESTS_CA_BUNDLE`, `CURL_CA_BUNDLE`, `NETRC`, `XDG_CONFIG_(HOME|DIRS)`,
	`PIP_(INDEX_URL|EXTRA_INDEX_URL|NO_INDEX|FIND_LINKS|TRUSTED_HOST|CERT|CLIENT_CERT|PROXY|CONFIG_FILE|` +
		`DEFAULT_TIMEOUT|TIMEOUT|RETRIES|KEYRING_PROVIDER)`,
	`UV_(DEFAULT_INDEX|INDEX|INDEX_URL|EXTRA_INDEX_URL|INDEX_STRATEGY|NO_INDEX|FIND_LINKS|INSECURE_HOST|` +
		`NATIVE_TLS|SYSTEM_CERTS|HTTP_TIMEOUT|HTTP_RETRIES|CONFIG_FILE|KEYRING_PROVIDER|OFFLINE|CONCURRENT_\w+)`,
	`UV_INDEX_\w+_(USERNAME|PASSWORD)`,
}, `|`) + `)$`)

// variables are an environment, as a map.
type variables map[string]string

// environ lists the variables as os.Environ does.
func (v variables) environ() []string {
	var out []string
	for name, value := range v {
		out = append(out, name+"="+value)
	}
	slices.Sort(out)
	return out
}

// setAll adds the variables of others.
func (v variables) setAll(others map[string]string) variables {
	for name, value := range others {
		v[name] = value
	}
	return v
}

// parseEnviron turns os.Environ's form into a map.
func parseEnviron(environ []string) variables {
	v := variables{}
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		v[name] = value
	}
	return v
}

// cleanEnvironment returns the variables of the user's environment that every process of a build
// gets.
func cleanEnvironment(environ []string) variables {
	user := parseEnviron(environ)
	v := variables{"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin"}
	// Leave out what depends on the working directory.
	isRelative := func(dir string) bool { return !filepath.IsAbs(dir) }
	if dirs := slices.DeleteFunc(filepath.SplitList(user["PATH"]), isRelative); len(dirs) > 0 {
		v["PATH"] = strings.Join(dirs, ":")
	}
	for _, name := range []string{"HOME", "USER", "LOGNAME", "LD_LIBRARY_PATH"} {
		if value, ok := user[name]; ok {
			v[name] = value
		}
	}
	return v
}

// addSiteVariables adds the settings of the site, for processes that use the network.
func (v variables) addSiteVariables(environ []string) variables {
	for name, value := range parseEnviron(environ) {
		if siteVariables.MatchString(name) {
			v[name] = value
		}
	}
	return v
}
