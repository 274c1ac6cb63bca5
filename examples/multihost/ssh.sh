#!/bin/bash
# One process of an example on each host, from a machine that reaches all of them by ssh:
#   examples/multihost/ssh.sh "host1 host2 host3" examples.lm.main --data /shared/books --out /shared/runs/lm
set -euo pipefail
read -ra hosts <<<"$1"
module=$2
shift 2
processes=()
trap 'kill "${processes[@]}" 2>/dev/null || true' EXIT  # background jobs ignore Ctrl-C
for index in "${!hosts[@]}"; do
  rank=("JAX_COORDINATOR_ADDRESS=${hosts[0]}:${PORT:-7700}" "NUM_PROCESSES=${#hosts[@]}" "PROCESS_ID=$index")
  command=(env "${rank[@]}" "${PYTHON:-python}" -m "$module" --checkpoint-every 50 --resume "$@")
  # With its own terminal (-tt), a process ends when this script does.
  ssh -tt "${hosts[index]}" "cd ${PWD@Q} && exec ${command[*]@Q}" </dev/null &
  processes+=($!)
done
status=0
for process in "${processes[@]}"; do
  wait "$process" || status=$?
done
exit "$status"
