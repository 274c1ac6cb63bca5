#!/usr/bin/env bash
# Builds the CUDA kernels on a machine with an NVIDIA GPU, tests and times them, and writes JSON; no network needed.
#
#     benchmarks/gpu.sh                   # the parts that have not passed yet; call again if some are left
#     benchmarks/gpu.sh build test        # these parts, also if they passed; each starts from what those before it left
#
#   build        the native module, and its kernels' registers, local memory and wide loads and stores
#   test         tests/gpu, with every custom call in a CUDA graph
#   kernels      every kernel and its peers: 214M elements, 16 servers, 1 to 5.2 %
#   dense        the same at 20 and 40 %
#   many         128 servers, 5.2 %
#   rows         units of 256 columns, 5.2 %
#   algorithm_1  the paper's Algorithm 1, Figure 16's sweeps
#   feedback     error feedback with selection
#   all_reduce   a whole emulated all-reduce, with the kernels and in pure JAX
#   report       report.md and roofline.png from the JSON so far; made in every call without named parts, last too if a
#                part ran after it
#   memcheck     compute-sanitizer's tools, one part each
#   racecheck
#   initcheck
#
# A part that failed or ran out of time is tried again once every other part has had its turn, or when it is named.
#
# Needs CUDA 13 (nvcc), cmake, ninja and a Python with JAX for CUDA, nanobind, NumPy, optax, pytest and hypothesis;
# torch and cupy to compare with, matplotlib for the report. Whichever of these three is missing is reported as absent.
#   PYTHON    the interpreter (default python3)
#   RESULTS   where results go (default build/gpu-results)
#   WHEELS    a folder with wheels of what that Python lacks, nanobind for example; all of them are installed
#   BUDGET    seconds that a call may take (default 560)
#   ELEMENTS  elements of the tensors (default 214e6, the paper's DeepFM table)
# With ZEN_JAX_REHEARSE_GPU=1, JAX_PLATFORMS=cpu and few ELEMENTS all parts except build and those of compute-sanitizer
# work without a GPU.
# Exit status: 0 if every part passed, 1 if one failed, 2 if parts are left for another call. parts/PART.json in RESULTS
# says how each part went, parts/PART.log what it printed. A part cut off, except all_reduce, keeps the densities that it
# had measured.
#
# RESULTS alone records what has passed, and with which sources, GPU, jax and ELEMENTS: if any of these is another now,
# the part runs again. If the next call may get another machine, bring that folder back from each machine and unpack it
# on the next; kernels that are missing there are rebuilt:
#     tar -czf gpu-results.tar.gz build/gpu-results        # on the old machine
#     tar -xzf gpu-results.tar.gz && benchmarks/gpu.sh     # on the new one
set -uo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
RESULTS=${RESULTS:-build/gpu-results}
ELEMENTS=${ELEMENTS:-214e6}
BUILD=build/gpu
SITE=$PWD/build/gpu-site
BUDGET=${BUDGET:-560}
PARTS=(build test kernels dense many rows algorithm_1 feedback all_reduce report memcheck racecheck initcheck)
declare -A LIMIT=([build]=200 [test]=280 [memcheck]=280 [racecheck]=280 [initcheck]=280 [kernels]=280 [dense]=240
  [many]=280 [rows]=120 [algorithm_1]=200 [feedback]=200 [all_reduce]=200 [report]=40)
export PYTHONPATH=$PWD:$SITE${PYTHONPATH:+:$PYTHONPATH}
export JAX_PLATFORMS=${JAX_PLATFORMS:-cuda,cpu} XLA_PYTHON_CLIENT_PREALLOCATE=false ZEN_JAX_REQUIRE_GPU=1
export CUDACXX=${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
mkdir -p "$RESULTS/parts"

build() {
  if [[ -n ${WHEELS:-} ]]; then
    "$PYTHON" -m pip install --quiet --no-index --no-deps --upgrade --target "$SITE" "$WHEELS"/*.whl || return
  fi
  cmake -S . -B "$BUILD" -G Ninja -DCMAKE_BUILD_TYPE=Release -DZEN_CUDA=ON -DZEN_MODULES=ON \
    -DCMAKE_CUDA_COMPILER="$CUDACXX" -DPython_EXECUTABLE="$(command -v "$PYTHON")" \
    -Dnanobind_DIR="$("$PYTHON" -m nanobind --cmake_dir)" &&
    cmake --build "$BUILD" &&
    rm -f zen_jax/_native_{cpu,cuda}.*so &&
    cmake --install "$BUILD" --prefix . &&
    "$PYTHON" cuda/check_kernels.py zen_jax/_native_cuda.*so --cuobjdump "$(dirname "$CUDACXX")/cuobjdump" &&
    "$PYTHON" -c 'import zen_jax; print(zen_jax.backend_info()["cuda"])'
}

# Without the kernels the library would fall back to pure JAX, and its times would pass for theirs.
have_kernels() {
  [[ -n ${ZEN_JAX_REHEARSE_GPU:-} ]] || "$PYTHON" -c 'import sys, zen_jax
said = zen_jax.backend_info()["cuda"]
sys.exit(None if said.startswith("custom calls") else f"no CUDA kernels: {said}")'
}

# Graphs of one node and up, so that every custom call runs captured and replayed. pytest-benchmark would warn about
# xdist, and warnings are errors here.
test_() {
  local parallel=()
  "$PYTHON" -c 'import xdist' 2> /dev/null && parallel=(-n 8)
  XLA_FLAGS="${XLA_FLAGS:-} --xla_gpu_enable_command_buffer=FUSION,CUSTOM_CALL --xla_gpu_graph_min_graph_size=1" \
    "$PYTHON" -m pytest -q -p no:benchmark tests/gpu "${parallel[@]}" --junitxml="$RESULTS/test.xml"
}

# sanitize TOOL [OPTION...]: runs it, for each kernel, on elements and narrow rows of float32, wide rows of float16 and
# elements of float64, on most servers at once, and where a block reuses its shared memory or a selection is taken back.
# Each buffer is a separate allocation, so that overruns are detected. XLA's own kernels are left out.
sanitize() {
  local sanitizer
  if ! sanitizer=$(command -v compute-sanitizer || command -v "$(dirname "$CUDACXX")/compute-sanitizer"); then
    echo "absent: no compute-sanitizer here"
    return 1
  fi
  local few='7-1-float32 or 7-3-float32 or 3-3-float32 or 10-1-float32 or 10-3-float32 or 5-1025 or 50-3000'
  few+=' or float32-normal or 7-float32 or 7-64-float16 or 3-64-float16 or 10-64-float16 or 7-1-float64 or 3-1-float64'
  few+=' or 10-1-float64 or 3001-float16-normal or 3001-float64-normal or 1-1024 or 1024-float16 or 1024-float64'
  few+=' or 10-20000-float32 or many_workers or 128-1-float32 or 301-1-float32'
  few+=' or 1025-1-float32 or 200003-float32 or listed or over_groups'
  XLA_PYTHON_CLIENT_ALLOCATOR=platform "$sanitizer" --tool "$@" --kernel-name kns=zen --error-exitcode 9 \
    --target-processes all "$PYTHON" -m pytest -v -p no:benchmark tests/gpu -k "$few"
}

# Without API errors: JAX tries what a driver may lack, which is not the kernels' fault.
memcheck() { sanitize memcheck --report-api-errors no; }

racecheck() { sanitize racecheck; }

initcheck() { sanitize initcheck; }

# fresh FILE: its path in RESULTS, where what an earlier run measured is gone.
fresh() { rm -f "$RESULTS/$1" && echo "$RESULTS/$1"; }

kernel_times() { "$PYTHON" -m benchmarks.kernels --elements "$ELEMENTS" --skip-slow --repeats 7 "$@"; }

kernels() { kernel_times -n 16 --density 0.01 0.028 0.052 --json "$(fresh kernels.json)"; }

dense() { kernel_times -n 16 --density 0.2 0.4 --json "$(fresh kernels-dense.json)"; }

many() { kernel_times -n 128 --density 0.052 --json "$(fresh kernels-n128.json)"; }

rows() { kernel_times -n 16 --density 0.052 --width 256 --json "$(fresh kernels-rows.json)"; }

algorithm_1() {
  "$PYTHON" -m benchmarks.algorithm_1 --elements "$ELEMENTS" --density 0.01 0.052 -n 16 --repeats 5 \
    --json "$(fresh algorithm_1.json)"
}

feedback() {
  "$PYTHON" -m benchmarks.sparsifiers --elements "$ELEMENTS" --density 0.01 0.052 --skip-slow --repeats 5 \
    --json "$(fresh sparsifiers.json)"
}

all_reduce() {
  "$PYTHON" -m benchmarks.all_reduce --json "$(fresh all_reduce.json)" &&
    ZEN_JAX_KERNELS=xla "$PYTHON" -m benchmarks.all_reduce --repeats 3 --json "$(fresh all_reduce-pure-jax.json)"
}

report() { "$PYTHON" -m benchmarks.gpu_report "$RESULTS" && cat "$RESULTS/report.md"; }

# sources NAME: a digest of what the part's outcome depends on in this checkout.
sources() {
  local own=benchmarks
  [[ $1 == build ]] && own=
  [[ $1 == test || $1 == *check ]] && own='tests benchmarks/gpu.sh'
  find CMakeLists.txt cmake cuda xla_ffi zen_jax $own -type f -regex '.*\.\(cc\|cmake\|cuh?\|h\|py\|sh\|txt\)' \
    -not -path 'benchmarks/results/*' | LC_ALL=C sort | xargs sha256sum | sha256sum | cut -c 1-16
}

# What each part runs with now.
declare -A RECORD
machine="\"device\": \"$(nvidia-smi --query-gpu=name --format=csv,noheader 2> /dev/null | head -n 1)\","
machine+=" \"jax\": \"$("$PYTHON" -c 'from importlib import metadata; print(metadata.version("jax"))')\","
machine+=" \"elements\": \"$ELEMENTS\""
for name in "${PARTS[@]}"; do RECORD[$name]="\"sources\": \"$(sources "$name")\", $machine"; done
COMMIT=$(git describe --always --dirty --abbrev=40 --exclude='*' 2> /dev/null)

# outcome NAME: what parts/NAME.json says, if the part ran with the same as now.
outcome() { grep -sF "${RECORD[$1]}" "$RESULTS/parts/$1.json"; }

# tries NAME: how often the part has run.
tries() {
  local said
  said=$(outcome "$1" | grep -o '"tries": [0-9]*') || said=0
  echo "${said##* }"
}

# part NAME: runs it within its time limit and records how it went.
part() {
  local name=$1 start=$SECONDS function=$1 tries status timed_out=false
  tries=$(($(tries "$name") + 1))
  [[ $name == test ]] && function=test_
  [[ $name == build || $name == report ]] || function="have_kernels && $function"
  timeout --kill-after=5 "${LIMIT[$name]}" bash -o pipefail -c "$function" > >(tee "$RESULTS/parts/$name.log") 2>&1
  status=$?
  [[ $status == 124 || $status == 137 ]] && timed_out=true  # 137: killed because it kept running
  echo "{\"part\": \"$name\", \"status\": $status, \"timed_out\": $timed_out, \"tries\": $tries," \
    "\"seconds\": $((SECONDS - start)), \"limit_seconds\": ${LIMIT[$name]}, \"commit\": \"$COMMIT\"," \
    "${RECORD[$name]}}" > "$RESULTS/parts/$name.json"
  echo "== $name: status $status after $((SECONDS - start)) s"
  return $status
}

passed() { outcome "$1" | grep -q '"status": 0,'; }

# fits NAME: whether this call has time for the part, and for a report on it.
fits() { ((SECONDS + LIMIT[$1] + LIMIT[report] <= BUDGET)); }

# All parts, the least often tried first.
in_turn() {
  local name
  for name in "${PARTS[@]}"; do echo "$(tries "$name") $name"; done | sort --stable --numeric-sort --key=1,1 |
    cut -d ' ' -f 2
}

export -f build have_kernels test_ sanitize memcheck racecheck initcheck fresh kernel_times kernels dense many rows \
  algorithm_1 feedback all_reduce report
export PYTHON RESULTS ELEMENTS BUILD SITE
for name in "$@"; do
  [[ -n ${LIMIT[$name]:-} ]] || { echo "no part $name: ${PARTS[*]}" >&2; exit 1; }
done

failed=0 left=() last=
if [[ $# -gt 0 ]]; then
  for name in "$@"; do
    if fits "$name"; then
      part "$name" || failed=1
    else
      left+=("$name")
    fi
  done
else
  # What was built on another machine is not here, and each call makes a report.
  have_kernels || rm -f "$RESULTS/parts/build.json"
  rm -f "$RESULTS/parts/report.json"
  for name in $(in_turn); do
    turn=$(tries "$name")
    if passed "$name"; then
      echo "== $name: passed before"
    elif [[ $name != report ]] && { ((turn > ${least:-$turn})) || ! fits "$name"; }; then
      left+=("$name") least=${least:-$turn}  # what was tried more often waits for it
    else
      part "$name" || failed=1
      last=$name
    fi
  done
  [[ $last == report ]] || part report || failed=1
fi
if ((${#left[@]})); then
  echo "left for another call: ${left[*]}"
  ((failed)) || exit 2
fi
exit $failed
