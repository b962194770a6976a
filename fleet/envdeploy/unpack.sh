# Unpacks the archive of a Python, which dsbuild has read and compared with the lock.
umask 022
rm -rf "$2" && mkdir "$2" && tar -xzf "$1" -C "$2" -o && rm -f "$1"
