# Gathers what is to be known about a node with nothing but POSIX tools, then
# hands over to the node's Python. Writes nothing. mark and py are set above.
LC_ALL=C
export LC_ALL
field() {
	printf '"%s":"%s",' "$1" "$(printf '%s' "$2" | tr '\n\t' ';;' | tr -d '\000-\037\177' | sed 's/[\\"]/\\&/g')"
}
smi() {
	command -v nvidia-smi >/dev/null 2>&1 || return 0
	# A broken driver makes it hang for ever.
	limit=
	command -v timeout >/dev/null 2>&1 && limit='timeout 20'
	$limit nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv,noheader 2>/dev/null
}
found=$(command -v "$py" 2>/dev/null)
printf '\n%s{"shell":{%s%s%s%s%s"end":""}}\n' "$mark" \
	"$(field machine "$(uname -m 2>/dev/null)")" \
	"$(field libc "$(getconf GNU_LIBC_VERSION 2>/dev/null)")" \
	"$(field flags "$(sed -n 's/^flags[^:]*: *//p' /proc/cpuinfo 2>/dev/null | head -n 1)")" \
	"$(field gpus "$(smi)")" \
	"$(field python "$found")"
[ -n "$found" ] || exit 0
unset LC_ALL
