# `make help` lists the targets. All but results goes into .venv and build/, which `make clean` removes.
PYTHON ?= python3
VENV ?= .venv
# A file with pip constraints, for example to pin jax.
CONSTRAINTS ?=
JOBS ?= 2
BAZEL ?= bazel

# Tools from the virtual environment: cmake, ninja, ruff, pytest.
export PATH := $(abspath $(VENV))/bin:$(PATH)
export JOBS
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet $(addprefix --constraint ,$(CONSTRAINTS))
INSTALLED := $(VENV)/.installed
NATIVE := $(wildcard CMakeLists.txt cmake/* cuda/*.* cuda/common/* xla_ffi/*.* xla_ffi/cpu/*)
ARGS ?=

.PHONY: help demo test unit-test sanitize lint bazel bench setup clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18
	@echo 'Variables: PYTHON (interpreter) and CONSTRAINTS (file for pip), which count until .venv is made; VENV, JOBS (tests'
	@echo 'at once), BAZEL, ARGS (passed on by demo, test and bench).'

demo: $(INSTALLED)  ## train a language model on 8 workers, zen beside dense
	$(VENV)/bin/python -m examples.lm.main $(ARGS)

test: $(INSTALLED) unit-test  ## every test: C++, Python, doctests
	$(VENV)/bin/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

unit-test: $(INSTALLED)  ## the C++ unit tests alone
	@if command -v "$${CXX:-c++}" >/dev/null; then scripts/unit_tests.sh build/tests; \
	else echo "No C++ compiler: the C++ unit tests are left out"; fi

sanitize: $(INSTALLED)  ## the C++ unit tests under the address, undefined behaviour and thread sanitizers
	scripts/unit_tests.sh build/sanitize -DZEN_SANITIZE=address,undefined
	scripts/unit_tests.sh build/sanitize-threads -DZEN_SANITIZE=thread

lint: $(INSTALLED)  ## ruff
	ruff check .

bazel: $(INSTALLED)  ## build and test with Bazel, which itself needs no network
	$(PIP) pybind11
	ZEN_PYTHON="$(abspath $(VENV)/bin/python)" $(BAZEL) test //...

bench: $(INSTALLED)  ## time the kernels against their floors
	$(VENV)/bin/python -m benchmarks.kernels $(ARGS)

setup: $(INSTALLED)  ## the virtual environment with everything that the others need

$(VENV)/bin/python:
	scripts/venv.sh $(PYTHON) $(VENV)

$(INSTALLED): $(VENV)/bin/python pyproject.toml $(NATIVE)
	@echo "Installing zen_jax and what it needs into $(VENV); the first time takes some minutes"
	$(PIP) cmake ninja ruff
	$(PIP) --editable '.[examples,test]'
	@$(VENV)/bin/python -c 'import zen_jax; print("zen_jax on the CPU:", zen_jax.backend_info()["cpu"])'
	@touch $@

clean:  ## remove .venv, build outputs and caches
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis bazel-*
