"""Eight CPU devices in one process, and JAX at its strictest."""

import os
import sys
from pathlib import Path

DEVICES = 8
flags = os.environ.get("XLA_FLAGS", "")
if "xla_force_host_platform_device_count" not in flags:
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={DEVICES}".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the time goes into compilation, some of it of the same programs in several processes and modules.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # every program from the cache causes a warning
sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1]))  # for examples: last, so that an installed zen_jax is the one tested

import harness  # noqa: E402
import hypothesis  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402

from zen_jax.cli.launch import share_cores  # noqa: E402

collect_ignore = ["counting.py"]  # it has no doctests, and needs the examples' extras

# Compiling inside an example takes seconds; the same examples every time keep a failure reproducible.
hypothesis.settings.register_profile("zen", deadline=None, derandomize=True, max_examples=40, database=None)
hypothesis.settings.load_profile("zen")

share_cores()  # with the processes that tests start


@pytest.fixture(autouse=True)
def strict(request):
    """No implicit promotion of ranks or dtypes; libraries that `promoting` modules use need dtype promotion."""
    promotion = "standard" if request.node.get_closest_marker("promoting") else "strict"
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion(promotion):
        yield


@pytest.fixture(scope="module")
def coarse_ladder():
    """The coarse ladder, for all tests of a module."""
    with harness.coarse_ladder():
        yield


@pytest.fixture(autouse=True, scope="module")
def forgetful():
    """Discards what a module compiled: the programs of all modules would fill gigabytes."""
    yield
    jax.clear_caches()
