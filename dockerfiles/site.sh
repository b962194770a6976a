# Read by the other scripts: the settings of a site (index, proxies, CA
# certificates), which are a secret of the build and stay out of every layer.
# Outside of a build that has them they come with the environment.
site=${DSBUILD_SITE:-/run/secrets/site}
if [ -r "$site" ]; then
    . "$site"
fi
for file in "${SSL_CERT_FILE-}" /etc/ssl/certs/ca-certificates.crt; do
    if [ -r "$file" ]; then
        export SSL_CERT_FILE="$file" PIP_CERT="${PIP_CERT:-$file}"
        break
    fi
done
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore UV_HTTP_TIMEOUT="${UV_HTTP_TIMEOUT:-180}" UV_PYTHON_DOWNLOADS=never
