# Read by the other scripts: the settings of a site (index, proxies, certificates,
# caches), which are a secret of the build and stay out of every layer. Outside of
# a build that has them they come with the environment.
site=${DSBUILD_SITE:-/run/secrets/site}
if [ -r "$site" ]; then
    . "$site"
fi
# /dev/shm is memory, and part of no layer. Where there are none TMPDIR is private,
# and gone with the build.
dsbuild_temporary() {
    if [ -n "${DSBUILD_SITE-}" ]; then mktemp "$@"; else mktemp -p /dev/shm "$@" 2>/dev/null || mktemp "$@"; fi
}
for file in "${SSL_CERT_FILE-}" /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt; do
    if [ -r "$file" ]; then
        export SSL_CERT_FILE="$file"
        break
    fi
done
if [ -n "${DSBUILD_CA-}" ]; then
    # Certificates of the site stand beside those there are. They are too long
    # for an environment.
    bundle=$(dsbuild_temporary)
    trap 'rm -f "$bundle"' EXIT
    { [ -z "${SSL_CERT_FILE-}" ] || cat "$SSL_CERT_FILE"; printf '%s\n' "$DSBUILD_CA"; } >"$bundle"
    export SSL_CERT_FILE="$bundle" PIP_CERT="$bundle" REQUESTS_CA_BUNDLE="$bundle" CURL_CA_BUNDLE="$bundle"
    unset DSBUILD_CA
fi
[ -z "${SSL_CERT_FILE-}" ] || export PIP_CERT="${PIP_CERT:-$SSL_CERT_FILE}"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore UV_HTTP_TIMEOUT="${UV_HTTP_TIMEOUT:-180}" UV_PYTHON_DOWNLOADS=never
