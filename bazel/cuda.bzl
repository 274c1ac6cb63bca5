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

def _error(ctx, nvcc):
    """What keeps this nvcc from compiling the kernels; None if nothing does."""
    if not ctx.path(nvcc).exists:
        return "it does not exist"
    header = ctx.path(Label("//cuda:look_back.cuh"))  # which needs the newest nvcc
    flags = ["-std=c++17", "-arch=sm_80", "-I%s" % header.dirname.dirname, "-include", header]
    compiled = ctx.execute([nvcc] + flags + ["-x", "cu", "-c", "/dev/null", "-o", "/dev/null"])
    return (compiled.stderr or "it fails") if compiled.return_code else None

def _cuda_repository_impl(ctx):
    named = ctx.os.environ.get("CUDACXX")
    nvcc = named or ctx.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    error = _error(ctx, nvcc)
    if named and error:
        fail("CUDACXX=%s cannot compile the kernels: %s" % (named, error))
    found = not error
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
