"""The Python that runs tests, and the headers that native modules for it compile with.

ZEN_PYTHON names it; the default is .venv/bin/python. It needs jax and pybind11.
"""

_PROBE = """
import importlib.util, sys, sysconfig
def package(name):
    spec = importlib.util.find_spec(name)
    return spec.submodule_search_locations[0] if spec else sys.exit("it lacks " + name)
print(sysconfig.get_path("include"), package("jaxlib") + "/include", package("pybind11") + "/include", sep="\\n")
"""

_BUILD = """
load("@bazel_tools//tools/python:toolchain.bzl", "py_runtime_pair")

package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob(["include/**"]),
    includes = ["include/python", "include/jaxlib", "include/pybind11"],
)

py_runtime(
    name = "runtime",
    interpreter_path = "{python}",
    python_version = "PY3",
)

py_runtime_pair(
    name = "runtime_pair",
    py3_runtime = ":runtime",
)

toolchain(
    name = "toolchain",
    toolchain = ":runtime_pair",
    toolchain_type = "@bazel_tools//tools/python:toolchain_type",
)
"""

def _python_repository_impl(ctx):
    root = ctx.path(Label("//:WORKSPACE")).dirname
    python = ctx.os.environ.get("ZEN_PYTHON", "%s/.venv/bin/python" % root)
    if not ctx.path(python).exists:
        fail("There is no %s: run `make setup`, or set ZEN_PYTHON" % python)
    probe = ctx.execute([python, "-c", _PROBE])
    if probe.return_code != 0:
        fail("%s does not serve: %s" % (python, probe.stderr))
    for name, path in zip(["python", "jaxlib", "pybind11"], probe.stdout.splitlines()):
        ctx.symlink(path, "include/" + name)
    ctx.file("BUILD", _BUILD.format(python = python))

python_repository = repository_rule(
    implementation = _python_repository_impl,
    environ = ["ZEN_PYTHON"],
    local = True,
)
