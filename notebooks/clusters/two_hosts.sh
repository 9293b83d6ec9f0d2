#!/usr/bin/env bash
# Train on two hosts that reach each other over the network. On each of them:
#
#     HOST0=<address of the first> HERE=<this host's own address> bash two_hosts.sh
#
# Both need this repository at the same commit, and the same Python packages. The folder
# of CHECKPOINT should be on a disk that both can read: then either host may be lost.
# Log files: logs/<job>/.../<rank>/stdout.log and stderr.log, on the host of that rank.
# If a rank dies, all ranks start again from the checkpoint, at most three times.
set -euo pipefail

: "${HOST0:?say HOST0=<address of the first host>}"
: "${HERE:?say HERE=<address of this host>}"
PORT=${PORT:-29400}                 # free on the first host, open in its firewall
JOB=${JOB:-lenet-1}                 # a new name for a new job; other names do not get in
RANKS=${RANKS:-2}                   # on each host, the same on both: its GPUs, or 2
CHECKPOINT=${CHECKPOINT:-$JOB.pt}
PYTHON=${PYTHON:-python}

# The first host keeps the meeting place. Said here, because a host often does not know
# its own address by its name.
if [ "$HERE" = "$HOST0" ]; then IS_HOST=1; else IS_HOST=0; fi

# A new store for each start: in torch 2.13's shared one, ranks that start again find
# the addresses of those that are gone.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

# The CPUs' messages take the network that has this host's address: by itself gloo takes
# the one that the host's own name stands for, which often leads nowhere else.
GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-$(ip -o address show to "$HERE" | awk '{ print $2 }')}
export GLOO_SOCKET_IFNAME

exec "$PYTHON" -m torch.distributed.run \
    --nnodes=2 \
    --nproc-per-node="$RANKS" \
    --max-restarts=3 \
    --rdzv-backend=c10d \
    --rdzv-id="$JOB" \
    --rdzv-endpoint="$HOST0:$PORT" \
    --rdzv-conf="is_host=$IS_HOST,join_timeout=${JOIN_TIMEOUT:-600}" \
    --local-addr="$HERE" \
    --log-dir="logs/$JOB" --redirects=3 --tee=3 \
    "$(dirname "$0")/../programs/train.py" \
    --epochs "${EPOCHS:-10}" --batch-size "${BATCH_SIZE:-240}" \
    --checkpoint "$CHECKPOINT" --every "${EVERY:-50}"
