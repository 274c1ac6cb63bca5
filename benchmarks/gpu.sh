#!/usr/bin/env bash
# Builds the CUDA kernels on a machine with an NVIDIA GPU, tests and times them, and writes JSON; no network needed.
#
#     benchmarks/gpu.sh                   # build test sanitize bench, under 10 minutes in all
#     benchmarks/gpu.sh build test        # some parts; each starts from what the parts before it left
#
# Needs CUDA 13 (nvcc), cmake, ninja and a Python with JAX for CUDA, nanobind, NumPy, optax, pytest and hypothesis.
#   PYTHON  the interpreter (default python3)
#   OUT     where results go (default build/gpu-results)
#   WHEELS  a folder with wheels of what that Python lacks, nanobind for example
# Exit status: 0 if every part passed. OUT/PART.json says how each part went, OUT/PART.log what it printed.
set -uo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
OUT=${OUT:-build/gpu-results}
BUILD=build/gpu
SITE=$PWD/build/gpu-site
export PYTHONPATH=$PWD:$SITE${PYTHONPATH:+:$PYTHONPATH}
export JAX_PLATFORMS=cuda,cpu XLA_PYTHON_CLIENT_PREALLOCATE=false ZEN_JAX_REQUIRE_GPU=1
mkdir -p "$OUT"

build() {
  if [[ -n ${WHEELS:-} ]]; then
    "$PYTHON" -m pip install --quiet --no-index --find-links "$WHEELS" --upgrade --target "$SITE" nanobind || return
  fi
  local nvcc=${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
  cmake -S . -B "$BUILD" -G Ninja -DCMAKE_BUILD_TYPE=Release -DZEN_CUDA=ON -DZEN_MODULES=ON \
    -DCMAKE_CUDA_COMPILER="$nvcc" -DPython_EXECUTABLE="$(command -v "$PYTHON")" \
    -Dnanobind_DIR="$("$PYTHON" -m nanobind --cmake_dir)" &&
    cmake --build "$BUILD" &&
    cmake --install "$BUILD" --prefix . &&
    "$PYTHON" cuda/check_resources.py --nvcc "$nvcc" --arch 90 &&
    "$PYTHON" -c 'import zen_jax; print(zen_jax.backend_info()["cuda"])'
}

# Graphs of one node and up, so that the custom calls run captured and replayed.
test_() {
  local parallel=()
  "$PYTHON" -c 'import xdist' 2> /dev/null && parallel=(-n 4)
  XLA_FLAGS="${XLA_FLAGS:-} --xla_gpu_graph_min_graph_size=1" \
    "$PYTHON" -m pytest -q tests/gpu "${parallel[@]}" --junitxml="$OUT/test.xml"
}

# Memory errors, then races in shared memory, on one case of elements and one of rows for each kernel.
sanitize() {
  if ! command -v compute-sanitizer; then
    echo "no compute-sanitizer here: nothing to do"
    return
  fi
  local few='7-1-float32 or 7-3-float32 or 3-3-float32 or 10-1-float32 or 10-3-float32'
  local tool
  for tool in memcheck racecheck; do
    timeout 70 compute-sanitizer --tool "$tool" --error-exitcode 9 --target-processes all \
      "$PYTHON" -m pytest -q tests/gpu -k "$few" || return
  done
}

bench() {
  kernels() { "$PYTHON" benchmarks/kernels.py --elements 100e6 --skip-slow "$@"; }
  kernels -n 16 --density 0.01 0.052 0.4 --json "$OUT/kernels.json" &&
    kernels -n 128 --density 0.052 --json "$OUT/kernels-n128.json" &&
    kernels -n 16 --density 0.052 --width 256 --json "$OUT/kernels-rows.json"
}

# What the figures were measured on.
machine() {
  "$PYTHON" - "$OUT/machine.json" <<'PY'
import importlib.metadata
import json
import platform
import subprocess
import sys


def output(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return None


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


query = "name,driver_version,memory.total,clocks.max.sm,clocks.max.memory"
packages = ["jax", "jaxlib", "jax-cuda13-plugin", "torch", "cupy-cuda13x", "numpy", "nanobind"]
facts = {
    "gpu": output("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"),
    "nvcc": (output("nvcc", "--version") or "").splitlines()[-2:],
    "python": platform.python_version(),
    "kernel": platform.release(),
    "packages": {package: version(package) for package in packages},
    "commit": output("git", "rev-parse", "HEAD"),
}
with open(sys.argv[1], "w") as file:
    json.dump(facts, file, indent=2)
print(json.dumps(facts, indent=2))
PY
}

# part NAME SECONDS FUNCTION: runs it within the bound and records how it went.
part() {
  local name=$1 seconds=$2 start=$SECONDS status
  export -f build test_ sanitize bench
  export PYTHON OUT BUILD SITE
  timeout --kill-after=5 "$seconds" bash -o pipefail -c "$3" > >(tee "$OUT/$name.log") 2>&1
  status=$?
  echo "{\"part\": \"$name\", \"status\": $status, \"timed_out\": $([[ $status == 124 ]] && echo true || echo false)," \
    "\"seconds\": $((SECONDS - start)), \"limit_seconds\": $seconds}" > "$OUT/$name.json"
  echo "== $name: status $status after $((SECONDS - start)) s"
  return $status
}

machine
failed=0
[[ $# -gt 0 ]] || set -- build test sanitize bench
for name in "$@"; do
  case $name in
    build) part build 150 build ;;
    test) part test 200 test_ ;;
    sanitize) part sanitize 140 sanitize ;;
    bench) part bench 100 bench ;;
    *) echo "no part $name: build, test, sanitize, bench" >&2; false ;;
  esac || failed=1
done
exit $failed
