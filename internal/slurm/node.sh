# Runs $DSBUILD_LINE, a line for the shell, on a node as sshd would. Then prints on stderr how it
# ended, with $1, a mark. srun itself ends with 0 when a node dies, and its messages about the
# end of a program are for people: only the mark is reliable.
#
# No variable of the job reaches the program, because some libraries obey SLURM_*; only TMPDIR
# does, the folder of the site for temporary files. Slurm sends signals to all processes of a
# step. The program may take its time after SIGTERM, and the step lasts until this shell ends.
# SIGUSR1 is for this shell alone: srun passes it on once it knows that the program runs. This
# shell then signals the program, and reports that.
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
