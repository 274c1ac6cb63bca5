"""CUDA sources compiled by a genrule that runs nvcc."""

load("@cuda//:nvcc.bzl", "NVCC", "TAGS")

_ARCHITECTURES = [
    "-gencode=arch=compute_80,code=sm_80",
    "-gencode=arch=compute_90,code=[sm_90,compute_90]",
]

def cuda_object(name, source, headers):
    """Compiles one .cu file into one object, for sm_80 and sm_90, and as PTX for later GPUs."""
    native.genrule(
        name = name,
        srcs = [source] + headers,
        outs = [source[:-len(".cu")] + ".cu.o"],
        # nvcc names its intermediate files by process ID, and the same ID occurs in every sandbox.
        cmd = " ".join(
            ["export TMPDIR=$$(mktemp -d -p $$PWD) &&", NVCC, "-c -O3 -std=c++17 -I."] +
            ["-Xcompiler=-fPIC,-fvisibility=hidden"] +
            ["'%s'" % flag for flag in _ARCHITECTURES] +
            ["$(location %s) -o $@ && rm -r $$TMPDIR" % source],
        ),
        tags = TAGS,
    )
