# Runs $DSBUILD_LINE, a line for the shell, on a node as sshd would, and says on stderr
# with $1, a mark, how it ended. srun itself ends with 0 when a node dies, and what else it
# says of a program's end is meant for people: only the mark tells.
#
# Nothing of the job reaches the program, for some libraries take SLURM_* for orders;
# but TMPDIR is where the site wants temporary files. Slurm sends signals to all
# processes of a step: the program may take its time over SIGTERM, and the step lasts
# until this shell ends. SIGUSR1, which srun passes on once it knows that the program
# runs, is for this shell alone: it tells the program, and says so.
line=$DSBUILD_LINE mark=$1
umask 022
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
set -f
IFS=:
set -- $(getent passwd "$(id -u)")
unset IFS
user=${1:-$SLURM_JOB_USER} home=${6:-/} shell=${7:-/bin/sh}
cd "$home" 2>/dev/null || cd /
trap 'kill -TERM 0; echo "$mark told" >&2' USR1
trap : HUP INT TERM
exec 3<&0
(
	trap '' USR1
	exec 3<&-
	exec env -i HOME="$home" USER="$user" LOGNAME="$user" SHELL="$shell" PATH="$PATH" ${TMPDIR:+TMPDIR="$TMPDIR"} \
		/bin/sh -c "trap : HUP INT TERM
$line"
) <&3 &
program=$!
exec 3<&- </dev/null
while :; do
	wait "$program"
	status=$?
	kill -0 "$program" 2>/dev/null || break
done
echo "$mark $status" >&2
exit "$status"
