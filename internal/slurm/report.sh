# Runs on this machine in an allocation while its input lasts, and keeps the job. Prints what was
# allocated; the line begins with a word that no greeting has.
echo "dsbuild-allocation $SLURM_JOB_ID $SLURM_JOB_NODELIST"
cat >/dev/null
# salloc ends the job, unless salloc was killed.
kill -0 "$PPID" 2>/dev/null || exec scancel "$SLURM_JOB_ID"
