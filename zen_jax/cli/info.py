"""Shows versions, devices, and which lowering of the kernels each platform uses."""

import argparse
import platform

import jax
import jaxlib

import zen_jax as zen
from zen_jax.cli import output
from zen_jax.planning.table import table

EXAMPLES = """  zen-jax info
  zen-jax info --json -"""


def add_options(parser: argparse.ArgumentParser) -> None:
    output.add_json(parser)


def run(options: argparse.Namespace) -> output.Result:
    versions = {"zen_jax": zen.__version__, "jax": jax.__version__, "jaxlib": jaxlib.__version__}
    versions["python"] = platform.python_version()
    devices = [{"id": device.id, "platform": device.platform, "kind": device.device_kind} for device in jax.devices()]
    kernels = zen.backend_info()
    rows = [*versions.items(), *((f"kernels on {name}", how) for name, how in kernels.items())]
    rows += [(f"device {device['id']}", f"{device['platform']} ({device['kind']})") for device in devices]
    return output.Result(table(rows), {**versions, "devices": devices, "kernels": kernels})
