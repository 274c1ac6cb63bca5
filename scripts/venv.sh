#!/usr/bin/env bash
# Makes a virtual environment, even where Debian's python3 comes without pip, venv and its headers.
#
#     scripts/venv.sh PYTHON FOLDER
set -euo pipefail
python=$1 folder=$2

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "zen_jax needs Python 3.11 or newer; choose one with PYTHON=, for example: make demo PYTHON=python3.12" >&2
  exit 1
}

has_ensurepip() { "$python" -c 'import ensurepip' 2>/dev/null; }
has_headers() {
  "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
}

# Debian packages these two separately from its python3.
if ! { has_ensurepip && has_headers; } && [[ $("$python" -c 'import sys; print(sys.prefix)') == /usr ]] &&
  command -v apt-get >/dev/null; then
  if [[ $(id -u) == 0 ]]; then
    echo "Installing python3-venv and python3-dev"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -yqq python3-venv python3-dev >/dev/null
  else
    echo "Parts of Python are missing. It is best to run this first: sudo apt install python3-venv python3-dev" >&2
  fi
fi
has_headers || echo "No Python.h: the native kernels cannot be built, so pure JAX will run instead, more slowly" >&2

# The next run would mistake half an environment for a whole one.
[[ -e $folder ]] || trap 'rm -rf "$folder"' ERR
if has_ensurepip; then
  "$python" -m venv "$folder"
elif "$python" -m pip --version >/dev/null 2>&1; then
  "$python" -m venv --without-pip "$folder"
  "$python" -m pip --python "$folder/bin/python" install --quiet pip
else
  echo "$python has neither pip nor ensurepip. On Debian: sudo apt install python3-venv python3-dev" >&2
  exit 1
fi
