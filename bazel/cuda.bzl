"""nvcc (12.8 or newer) and CUDA's headers: where CUDACXX says, on PATH or in /usr/local/cuda.

Without them CUDA targets are manual.
"""

_BUILD = """
cc_library(
    name = "runtime",
    hdrs = glob(["include/**"], allow_empty = True),
    includes = ["include"],
    linkopts = {linkopts},
    visibility = ["//visibility:public"],
)
"""

def _can_compile(ctx, nvcc):
    header = ctx.path(Label("//cuda:look_back.cuh"))  # which needs the newest nvcc
    flags = ["-std=c++17", "-arch=sm_80", "-I%s" % header.dirname.dirname, "-include", header]
    return ctx.execute([nvcc] + flags + ["-x", "cu", "-c", "/dev/null", "-o", "/dev/null"]).return_code == 0

def _cuda_repository_impl(ctx):
    nvcc = ctx.os.environ.get("CUDACXX") or ctx.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    found = ctx.path(nvcc).exists and _can_compile(ctx, nvcc)
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
