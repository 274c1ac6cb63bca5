"""Fails when a compiled CUDA kernel is not what its source is meant to become.

No kernel may use local memory, nor more than 64 registers, so that two blocks of 512 threads fit on a multiprocessor.
Where a kernel streams, it must load and store 16 bytes at once, or leave it to the copy engine: nvcc moves a struct
member by member if it likes.

python cuda/check_kernels.py zen_jax/_native_cuda.abi3.so --cuobjdump /usr/local/cuda/bin/cuobjdump
"""

import argparse
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

MOST_REGISTERS = 64
LOAD, STORE = "LDG.128", "STG.128"
BULK = {"S.G": LOAD, "G.S": STORE}
STREAMS = {
    "partition_elements": (1, 0),
    "partition_rows": (9, 1),
    "sort_chunks": (1, 0),
    "move_unlisted": (1, 0),
    "encode_elements": (16, 0),
    "encode_elements<uint16>": (8, 0),
    "encode_rows": (15, 7),
    "decode_elements": (0, 8),
    "decode_rows": (1, 2),
    "aggregate_range": (8, 1),
    "aggregate_range<Float16, 1>": (0, 1),
    "aggregate_range<Float32, 1>": (0, 1),
    "aggregate_encode_range": (8, 5),
    "accumulate": (3, 3),
    "finish": (4, 0),
}
"""The least numbers of wide loads and stores in the code of each, for all its streams together; of those with a pack
size, only in the ones with packs of more than one element, unless listed with it. nvcc 13.0 makes as many. Kernels of
lists and for more than 1024 servers move elements one by one.
"""

# Template arguments: an unsigned integer and maybe the kind of states, or a dtype and maybe a pack size.
ARGUMENT = re.compile(
    r"I(?:(?P<bits>[tjm])(?:NS0_\d+(?P<states>[A-Za-z]+?)E)?|\w*?\d(?P<dtype>[A-Z][a-z]+\d+)E?(?:Li(?P<size>\d+)E)?)E"
)
RESOURCES = re.compile(r"Function (?P<name>\w+):\s+REG:(?P<registers>\d+) STACK:(?P<stack>\d+) .*?LOCAL:(?P<local>\d+)")
ACCESS = re.compile(r"\*/\s+(?:@!?U?P\d+ )?(LDG|STG|LDL|STL)(?:(?:\.\w+)*?(\.128))?")
BULK_COPY = re.compile(r"\*/\s+(?:@!?U?P\d+ )?UBLKCP\.(\w\.\w)")


class Kernel(NamedTuple):
    name: str
    arch: str
    registers: int
    local_bytes: int
    accesses: Counter[str]  # how often the code has "LDG.128" and the like

    @property
    def plain_name(self) -> str:
        return self.name.partition("<")[0]

    def faults(self) -> list[str]:
        of_all = (0, 0) if self.name.endswith(", 1>") else STREAMS.get(self.plain_name, (0, 0))
        least = STREAMS.get(self.name, of_all)
        wide = {access: (self.accesses[access], wanted) for access, wanted in zip((LOAD, STORE), least, strict=True)}
        found = [f"more than {MOST_REGISTERS} registers"] * (self.registers > MOST_REGISTERS)
        found += ["local memory"] * bool(self.local_bytes or self.accesses["LDL"] or self.accesses["STL"])
        return found + [f"{has} of {wanted} {access}" for access, (has, wanted) in wide.items() if has < wanted]


def kernel_name(mangled: str) -> str:
    """The last identifier of a mangled name with its template arguments: 'aggregate_range<Float16, 8>'."""
    rest, names = mangled.removeprefix("_ZN").removeprefix("_Z"), []
    while digits := re.match(r"\d+", rest):
        end = digits.end() + int(digits[0])
        names.append(rest[digits.end() : end])
        rest = rest[end:]
    argument = ARGUMENT.match(rest)
    if argument is None:
        return names[-1]
    types = {"t": "uint16", "j": "uint32", "m": "uint64"}
    given = [argument["dtype"] or types[argument["bits"]], argument["states"], argument["size"]]
    return f"{names[-1]}<{', '.join(filter(None, given))}>"


def kernels(module: str, cuobjdump: str) -> Iterator[Kernel]:
    """The kernels of every architecture that a module holds code for."""
    accesses: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for arch, code in _by_arch([cuobjdump, "-sass", module]):
        for function in code.split("Function : ")[1:]:
            name, _, instructions = function.partition("\n")
            accesses[arch, name] += Counter(access + width for access, width in ACCESS.findall(instructions))
            accesses[arch, name] += Counter(BULK[way] for way in BULK_COPY.findall(instructions))
    for arch, report in _by_arch([cuobjdump, "-res-usage", module]):
        for found in RESOURCES.finditer(report):
            local = int(found["stack"]) + int(found["local"])
            seen = accesses[arch, found["name"]]
            yield Kernel(kernel_name(found["name"]), arch, int(found["registers"]), local, seen)


def _by_arch(command: list[str]) -> Iterator[tuple[str, str]]:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    for part in re.split(r"^arch = ", done.stdout, flags=re.MULTILINE)[1:]:
        arch, _, rest = part.partition("\n")
        yield arch, rest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module")
    parser.add_argument("--cuobjdump", default="cuobjdump", help="with nvdisasm beside it or on PATH")
    arguments = parser.parse_args()

    found = list(kernels(arguments.module, arguments.cuobjdump))
    names = {name for kernel in found for name in (kernel.name, kernel.plain_name)}
    if lacking := STREAMS.keys() - names:
        sys.exit(f"{arguments.module} lacks {', '.join(sorted(lacking))}: it has {', '.join(sorted(names)) or 'none'}")
    for kernel in found:
        wide = f"{kernel.accesses[LOAD]:2} wide loads, {kernel.accesses[STORE]:2} wide stores"
        note = f"  <- {', '.join(kernel.faults())}" if kernel.faults() else ""
        print(f"{kernel.arch}  {kernel.registers:3} registers  {wide}  {kernel.name}{note}")
    sys.exit(any(kernel.faults() for kernel in found))


if __name__ == "__main__":
    main()
