# Unpacks the archive of a Python, which dsbuild has read and compared with the lock.
umask 022
rm -rf "$2" && mkdir -m 700 "$2" && tar -xzf "$1" -C "$2" -o &&
	chmod -R go-w "$2" && chmod 755 "$2" && rm -f "$1" # as root, tar heeds no umask
