"""Fails when a CUDA kernel uses local memory or more than 64 registers, so that two blocks of 512 threads do not fit.

python cuda/check_resources.py --nvcc /usr/local/cuda/bin/nvcc
"""

import argparse
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
MOST_REGISTERS = 64
REPORT = re.compile(
    r"Compiling entry function '(?P<name>\w+)' for '(?P<arch>\w+)'"
    r".*?(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
    r".*?Used (?P<registers>\d+) registers",
    re.DOTALL,
)


class Kernel(NamedTuple):
    name: str
    arch: str
    registers: int
    local_bytes: int

    def fits(self) -> bool:
        return self.registers <= MOST_REGISTERS and self.local_bytes == 0


def kernel_name(mangled: str) -> str:
    """The last identifier of a mangled name with its template arguments: 'aggregate_range<Float16, 8>'."""
    rest, names = mangled.removeprefix("_ZN").removeprefix("_Z"), []
    while digits := re.match(r"\d+", rest):
        end = digits.end() + int(digits[0])
        names.append(rest[digits.end() : end])
        rest = rest[end:]
    argument = re.match(r"I(?:(?P<bits>[tjm])|\w*?\d(?P<dtype>[A-Z][a-z]+\d+)E?(?:Li(?P<size>\d+)E)?)E", rest)
    if argument is None:
        return names[-1]
    types = {"t": "uint16", "j": "uint32", "m": "uint64"}
    given = [argument["dtype"] or types[argument["bits"]], argument["size"]]
    return f"{names[-1]}<{', '.join(filter(None, given))}>"


def compile_and_report(nvcc: str, arch: str, source: Path) -> list[Kernel]:
    with tempfile.TemporaryDirectory() as folder:
        command = [nvcc, "-std=c++17", "-O3", f"-I{ROOT}", f"-arch=sm_{arch}", "-Xptxas", "-v", "-cubin"]
        done = subprocess.run([*command, source, "-o", f"{folder}/out.cubin"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{source.name} does not compile for sm_{arch}:\n{done.stderr}")
    return [
        Kernel(
            kernel_name(found["name"]),
            found["arch"],
            int(found["registers"]),
            int(found["stack"]) + int(found["stores"]) + int(found["loads"]),
        )
        for found in REPORT.finditer(done.stderr)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--arch", nargs="+", default=["80", "90"])
    arguments = parser.parse_args()

    jobs = [(arguments.nvcc, arch, source) for arch in arguments.arch for source in sorted(ROOT.glob("cuda/*.cu"))]
    with ThreadPoolExecutor(2) as pool:
        kernels = [kernel for found in pool.map(lambda job: compile_and_report(*job), jobs) for kernel in found]
    if not kernels:
        sys.exit("nvcc reported no kernels")
    for kernel in kernels:
        note = "" if kernel.fits() else "  <- too many"
        print(f"{kernel.arch}  {kernel.registers:3} registers  {kernel.local_bytes:3} B local  {kernel.name}{note}")
    sys.exit(not all(kernel.fits() for kernel in kernels))


if __name__ == "__main__":
    main()
