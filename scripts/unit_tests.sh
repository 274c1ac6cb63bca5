#!/usr/bin/env bash
# Builds and runs the C++ unit tests in the folder given first; further arguments go to CMake.
set -euo pipefail
folder=$1
shift
cmake -S . -B "$folder" -G Ninja -DZEN_TESTS=ON -DPython_EXECUTABLE="$(command -v python)" "$@" >/dev/null
cmake --build "$folder" --parallel "${JOBS:-2}"
ctest --test-dir "$folder" --parallel "${JOBS:-2}" --output-on-failure
