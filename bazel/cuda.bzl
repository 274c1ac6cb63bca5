"""nvcc and CUDA's headers: where CUDACXX says, on PATH or in /usr/local/cuda. Without them CUDA targets are manual."""

_BUILD = """
cc_library(
    name = "runtime",
    hdrs = glob(["include/**"], allow_empty = True),
    includes = ["include"],
    linkopts = {linkopts},
    visibility = ["//visibility:public"],
)
"""

def _cuda_repository_impl(ctx):
    nvcc = ctx.os.environ.get("CUDACXX") or ctx.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    found = ctx.path(nvcc).exists
    linkopts = []
    if found:
        root = ctx.path(nvcc).realpath.dirname.dirname
        ctx.symlink(root.get_child("include"), "include")
        linkopts = ["-L%s/lib64" % root, "-L%s/lib" % root, "-lcudart_static", "-ldl", "-lrt", "-lpthread"]
    ctx.file("BUILD", _BUILD.format(linkopts = repr(linkopts)))
    ctx.file("nvcc.bzl", "NVCC = %r\nTAGS = %r\n" % (str(nvcc), [] if found else ["manual"]))

cuda_repository = repository_rule(
    implementation = _cuda_repository_impl,
    environ = ["CUDACXX", "PATH"],
    local = True,
)
