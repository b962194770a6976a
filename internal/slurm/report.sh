# Runs here, in an allocation, for as long as its input lasts, and with it the job. It
# says what was allocated; the line begins with a word that no greeting has.
echo "dsbuild-allocation $SLURM_JOB_ID $SLURM_JOB_NODELIST"
cat >/dev/null
# salloc takes the job back, unless it was killed.
kill -0 "$PPID" 2>/dev/null || exec scancel "$SLURM_JOB_ID"
