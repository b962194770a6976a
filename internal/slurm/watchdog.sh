# Runs salloc, with these arguments, until its own input ends, however the program
# ends that holds the other end: a salloc that waits for nodes would wait on.
exec 3<&0
salloc "$@" <&3 &
salloc=$!
(
	cat <&3 >/dev/null
	kill -TERM "$salloc"
) 2>/dev/null &
watch=$!
exec 3<&-
wait "$salloc"
status=$?
kill "$watch" 2>/dev/null
exit "$status"
