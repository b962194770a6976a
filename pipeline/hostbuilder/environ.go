package hostbuilder

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// The steps run in a clean environment: what the user's shell has set would
// decide what is built. Passed on are PATH and its companion for libraries,
// which is what loading a module changes, and how this user reaches the indexes,
// beside what pipeline.Site says.

// siteVariables are the settings of a site: proxies, certificates, indexes.
var siteVariables = regexp.MustCompile(`^(` + strings.Join([]string{
	`(?i:https?|no|all|ftp)_(?i:proxy)`,
	`SSL_CERT_(FILE|DIR)`, `REQUESTS_CA_BUNDLE`, `CURL_CA_BUNDLE`, `NETRC`, `XDG_CONFIG_(HOME|DIRS)`,
	`PIP_(INDEX_URL|EXTRA_INDEX_URL|NO_INDEX|FIND_LINKS|TRUSTED_HOST|CERT|CLIENT_CERT|PROXY|CONFIG_FILE|DEFAULT_TIMEOUT|TIMEOUT|RETRIES|KEYRING_PROVIDER)`,
	`UV_(DEFAULT_INDEX|INDEX|INDEX_URL|EXTRA_INDEX_URL|INDEX_STRATEGY|NO_INDEX|FIND_LINKS|INSECURE_HOST|NATIVE_TLS|SYSTEM_CERTS|HTTP_TIMEOUT|HTTP_RETRIES|CONFIG_FILE|KEYRING_PROVIDER|OFFLINE|CONCURRENT_\w+)`,
	`UV_INDEX_\w+_(USERNAME|PASSWORD)`,
}, `|`) + `)$`)

// variables are an environment, as a map.
type variables map[string]string

// environ is what a process is given.
func (v variables) environ() []string {
	var out []string
	for name, value := range v {
		out = append(out, name+"="+value)
	}
	slices.Sort(out)
	return out
}

// set adds what others hold.
func (v variables) set(others map[string]string) variables {
	for name, value := range others {
		v[name] = value
	}
	return v
}

// read turns os.Environ's form into a map.
func read(environ []string) variables {
	v := variables{}
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		v[name] = value
	}
	return v
}

// clean is what every process of a build is given of the user's environment.
func clean(environ []string) variables {
	user := read(environ)
	v := variables{"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "PATH": searchPath(user["PATH"])}
	for _, name := range []string{"HOME", "USER", "LOGNAME", "LD_LIBRARY_PATH"} {
		if value, ok := user[name]; ok {
			v[name] = value
		}
	}
	return v
}

// site adds the settings of the site, for what reaches out.
func (v variables) site(environ []string) variables {
	for name, value := range read(environ) {
		if siteVariables.MatchString(name) {
			v[name] = value
		}
	}
	return v
}

// searchPath leaves out of a PATH what depends on the working directory.
func searchPath(path string) string {
	dirs := slices.DeleteFunc(filepath.SplitList(path), func(dir string) bool { return !filepath.IsAbs(dir) })
	if len(dirs) == 0 {
		return "/usr/local/bin:/usr/bin:/bin"
	}
	return strings.Join(dirs, ":")
}

// lookEnv is what LookScript is given: where CUDA is said to be counts too.
func lookEnv(environ []string) []string {
	v, user := clean(environ), read(environ)
	for _, name := range []string{"CUDA_HOME", "CUDA_PATH"} {
		if value, ok := user[name]; ok {
			v[name] = value
		}
	}
	return v.environ()
}
