#!/bin/bash
# One process of an example on each host, from a machine that reaches all of them by ssh, without a password:
#   examples/multihost/ssh.sh "host1 host2 host3" examples.lm.main --data /shared/books --out /shared/runs/lm
set -euo pipefail
read -ra hosts <<<"${1:?give the hosts, such as \"host1 host2\"}"
module=${2:?give a module, such as examples.lm.main}
shift 2
coordinator=${hosts[0]#*@}:${PORT:-7700}
forwarded=()  # environment variables that ssh would drop
pattern='^(JAX_|XLA_|ZEN_JAX_|NCCL_|CUDA_VISIBLE_DEVICES$|PYTHONPATH$|LD_PRELOAD$|GLIBC_TUNABLES$|MALLOC_|TCMALLOC_)'
for name in $(compgen -e | grep -E "$pattern"); do forwarded+=("$name=${!name}"); done
processes=()
trap 'kill "${processes[@]}" 2>/dev/null || true' EXIT  # background jobs ignore Ctrl-C
for index in "${!hosts[@]}"; do
  rank=("JAX_COORDINATOR_ADDRESS=$coordinator" "NUM_PROCESSES=${#hosts[@]}" "PROCESS_ID=$index")
  command=(env "${forwarded[@]}" "${rank[@]}" "${PYTHON:-python}" -m "$module" --checkpoint-every 50 --resume "$@")
  # With its own terminal (-tt), a process ends when this script does.
  ssh -tt -o BatchMode=yes "${hosts[index]}" "cd ${PWD@Q} && exec ${command[*]@Q}" </dev/null &
  processes+=($!)
done
for _ in "${processes[@]}"; do
  status=0
  wait -n || status=$?
  [[ $status == 0 ]] && continue
  # The others end by themselves if they have met.
  for _ in {1..60}; do [[ $(jobs -rp) ]] || break; sleep 1; done
  exit "$status"
done
