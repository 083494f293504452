#!/bin/bash
# Ring training under Slurm. Submit from the folder of the clone, with the words that would follow
# `python -m lightctr_mpi`:
#
#     sbatch jobs/ring.sh                                        the sample data
#     sbatch jobs/ring.sh train job.toml --optimizer.lr 0.1      your own job
#     sbatch -N 4 --array=0-2 jobs/ring.sh train job.toml        4 nodes; a run for each line of SETTINGS below
#
# Before the time limit, and when the job is preempted, the run saves and ends with 75; the script then puts the
# job back into the queue, and its next start goes on from there. jobs/README.md tells more.

# ---- change these to suit your cluster ("##SBATCH" lines are off)
#SBATCH --job-name=ring
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4       # ranks of a node: as many as it has cores, divided by the threads of a rank
#SBATCH --cpus-per-task=1         # threads of a rank; ring training computes with one
#SBATCH --time=01:00:00
#SBATCH --signal=B:USR1@120       # seconds before the time limit: enough for a step and for writing the model
##SBATCH --mem-per-cpu=2G         # the model, its optimizer state and a few batches for each rank
##SBATCH --partition=PARTITION
##SBATCH --account=ACCOUNT
##SBATCH --array=0-2              # the same as --array on the command line

# ---- leave these: resuming relies on them ("%x-%j" is name and number of the job)
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out

# An array task takes the line of its number (from 0).
SETTINGS=(
    "--optimizer.lr 0.05"
    "--optimizer.lr 0.1"
    "--optimizer.lr 0.2 --optimizer.l2 1e-4"
)

# These can be set when submitting as well: VENV=~/ctr sbatch jobs/ring.sh
VENV=${VENV:-.venv}                                   # has the package and one MPI
LAUNCH=${LAUNCH:-"mpirun -n ${SLURM_NTASKS:-1}"}      # MPICH can do LAUNCH="srun --mpi=pmi2"
MAX_RESTARTS=${MAX_RESTARTS:-50}                      # no more requeueing after so many starts
# module load ...                                     # a system MPI in place of the one in VENV

# Compiled kernels: on a disk of the node that outlives the job. All nodes of a kind compile once.
export LIGHTCTR_CACHE_DIR=${LIGHTCTR_CACHE_DIR:-/tmp/lightctr_mpi-$(id -u)}
# Run folder and parsed rows (.lightctr_cache/ beside the data, or LIGHTCTR_DATA_CACHE=FOLDER) are read by all
# nodes, so they lie on a shared file system.

# ---- from here on nothing needs a change
MODE=${MODE:-ring} # ps.sh sets it, and what belongs to it, before it reads this file
MODE_OPTIONS=("${MODE_OPTIONS[@]}")
say() { printf "$MODE.sh, job %s, start %d, %(%T)T: %s\n" "$job" $((restarts + 1)) -1 "$*"; }

: "${SLURM_JOB_ID:?is not set: submit this script with sbatch}"
# Not SLURM_JOB_ID for an array task: that of the last one is also the number of the whole array.
job=$SLURM_JOB_ID
[[ ${SLURM_ARRAY_TASK_ID:-} ]] && job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
restarts=${SLURM_RESTART_COUNT:-0}
cd "${SLURM_SUBMIT_DIR:-.}" && source "$VENV/bin/activate" || exit 2

what=()
if [[ ${1:-} == train ]]; then
    what=(train)
    shift
elif [[ ${1:--} != -* ]]; then
    say "expected train and its options, found $1"
    exit 2
fi
options=("$@")
if [[ -n ${SLURM_ARRAY_TASK_ID:-} ]]; then
    if [[ -z ${SETTINGS[SLURM_ARRAY_TASK_ID]:-} ]]; then
        say "SETTINGS has no line number $SLURM_ARRAY_TASK_ID"
        exit 2
    fi
    read -ra setting <<<"${SETTINGS[SLURM_ARRAY_TASK_ID]}"
    options+=("${setting[@]}")
fi
out=
for ((i = 0; i < ${#options[@]}; i++)); do # a run folder of the user's own
    case ${options[i]} in
    --out) out=${options[i + 1]:-} ;;
    --out=*) out=${options[i]#--out=} ;;
    esac
done
if [[ ! $out ]]; then
    out=runs/${SLURM_JOB_NAME:-$MODE}-$job
elif [[ ${SLURM_ARRAY_TASK_ID:-} ]]; then
    out+=_$SLURM_ARRAY_TASK_ID # one folder for each task
fi
options+=(--out "$out")
((restarts)) && options+=(--train.resume auto) # stands last, to win over the user's
summary=$out/summary.json                      # the program's own sign of a finished run
rm -f "$summary"

case $LAUNCH in
srun*) export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1} ;;
# mpirun starts one daemon on each node through srun: it must not be bound to a single core with all its ranks.
*) export SLURM_CPU_BIND=none PRTE_MCA_hwloc_default_binding_policy=none ;;
esac

# USR1 is Slurm's warning to this script, which hands it on through the launcher: sent to the step itself it would
# end the daemons of Open MPI. TERM comes when the job is cancelled or requeued: Slurm then decides what follows.
warned=0 ended=0 interrupted=0 pid=
trap 'interrupted=1; warned=1; say "USR1: saving"; [[ $pid ]] && kill -USR1 "$pid" 2>/dev/null' USR1
trap 'interrupted=1; ended=1' TERM

say "$LAUNCH on $SLURM_JOB_NODELIST, run folder $out"
$LAUNCH python -m lightctr_mpi "${what[@]}" --mode "$MODE" "${MODE_OPTIONS[@]}" \
    --train.threads "${SLURM_CPUS_PER_TASK:-1}" --train.resume auto "${options[@]}" &
pid=$!
while :; do # a trapped signal ends wait early: the code counts when none came
    interrupted=0
    wait "$pid"
    code=$?
    ((interrupted)) || break
done

# A summary has to be there too: mpirun of Open MPI returns 0 when its daemons are ended by a signal.
if ((code == 0)) && [[ -s $summary ]]; then
    say "finished"
    exit 0
fi
case $code in
0 | 75 | 15 | 143) again=1 ;; # stopped, or ended by the TERM of a preemption before there was anything to save
1 | 2) again=0 ;;             # a fault, or an error of the user: it would only come again
*) again=$warned ;;
esac
# Steps may be gone before this script hears of a scancel: the job is COMPLETING then. SIGNALING passes.
state=SIGNALING
for ((i = 0; again && i < 10 && !ended; i++)); do
    state=$(squeue -h -j "$job" -o %T)
    [[ $state == SIGNALING ]] || break
    sleep 1
done
if ((ended)) || { ((again)) && [[ $state != RUNNING ]]; }; then
    say "ended by Slurm (code $code)"
elif ((!again)); then
    say "failed (code $code)"
elif ((restarts >= MAX_RESTARTS)); then
    say "stopped before the end (code $code), and started often enough (MAX_RESTARTS=$MAX_RESTARTS)"
elif scontrol requeue "$job"; then
    say "stopped before the end (code $code): requeued"
    for ((i = 0; i < 60 && !ended; i++)); do sleep 1; done # Slurm ends the job, and this script with it
else
    say "stopped before the end (code $code), and could not be requeued"
fi
((code)) || code=75
exit "$code"
