#!/bin/bash
# Training with parameter servers under Slurm. Submit from the folder of the clone, as jobs/ring.sh, which does the
# work (saving, requeueing, resuming):
#
#     sbatch jobs/ps.sh                                          the sample data
#     sbatch -N 4 --ntasks-per-node=8 jobs/ps.sh train job.toml --ps.consistency ssp --ps.staleness 4
#
# Rank 0 is the Master, the next ranks are servers, the rest workers. Ranks are dealt to the nodes in turn, and there
# are as many servers as nodes (PS_SERVERS=3 sbatch ... for another number), so that each node holds one server and
# its link carries a like part of the traffic.

# ---- change these to suit your cluster ("##SBATCH" lines are off)
#SBATCH --job-name=ps
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4       # ranks of a node; the Master and the servers are among them
#SBATCH --cpus-per-task=1
#SBATCH --time=01:00:00
#SBATCH --signal=B:USR1@120       # seconds before the time limit: enough for a step and for writing the model
##SBATCH --mem-per-cpu=2G         # of a server: its share of the model with state, times 1.5; workers need less
##SBATCH --partition=PARTITION
##SBATCH --account=ACCOUNT

# ---- leave these: resuming relies on them
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
#SBATCH --distribution=cyclic     # for LAUNCH="srun ...": ranks to the nodes in turn

cd "${SLURM_SUBMIT_DIR:-.}" || exit 2
VENV=${VENV:-.venv}
nodes=${SLURM_JOB_NUM_NODES:-1} ranks=${SLURM_NTASKS:-3}
most=$((ranks - 2)) # a Master and at least one worker
((most < 1)) && most=1
PS_SERVERS=${PS_SERVERS:-$((nodes < most ? nodes : most))}
if [[ ! ${LAUNCH:-} ]]; then
    case $("$VENV/bin/mpirun" --version 2>/dev/null || mpirun --version 2>/dev/null) in
    *"Open MPI"* | *prte*) LAUNCH="mpirun -n $ranks --map-by node" ;;
    *) LAUNCH="mpirun -n $ranks -ppn 1" ;; # MPICH starts again with the first host when it has been to all
    esac
fi
MODE=ps
MODE_OPTIONS=(--ps.servers "$PS_SERVERS")
source jobs/ring.sh
