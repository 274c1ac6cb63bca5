"""Processes that were started differently learn what differs: values are compared by what they are."""

import dataclasses
import enum
import functools
import re

import harness
import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import pytest

from zen_jax import Cluster, __version__, agreement, check_agreement, profile
from zen_jax.agreement import describe, differences

AGREE = """
import sys
import jax
import numpy as np
import zen_jax as zen

count, index = int(sys.argv[2]), int(sys.argv[3])
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(sys.argv[1], count, index, initialization_timeout=60)

def everywhere(*spec):
    # An array of which each process has its own idea.
    sharding = jax.NamedSharding(jax.make_mesh((count,), ("data",)), jax.P(*spec))
    return jax.make_array_from_callback((count, 2), sharding, lambda at: np.full((count, 2), index, np.float32)[at])

def plan(capacity):
    leaf = zen.LeafPlan((5000, 64), "float32", "zen", 16, (capacity, 30), "coo", "coo")
    return zen.Plan(3, {"table": leaf}, 0)

zen.check_agreement(seed=0, plan=plan(20), params={"w": jax.numpy.zeros(3)})
try:
    seed, cluster = index // 2, zen.Cluster(3, inter_gbps=1 + index // 2)
    params = {"w": jax.numpy.zeros(3 - index), "embed": jax.random.normal(jax.random.key(index // 2), (5, 7))}
    params |= {"replicated": everywhere(), "sharded": everywhere("data")}
    zen.check_agreement(seed=seed, plan=plan(20 + index % 2), cluster=cluster, params=params)
except ValueError as error:
    print(error)
"""


@pytest.mark.multiprocess
def test_processes_that_disagree_all_learn_about_what():
    for output in harness.outputs_of_processes(3, "-c", AGREE):
        for line in (
            "the processes disagree",
            "params/w is float32[3] with digest ",
            "params/embed is float32[5, 7] with digest ",
            "params/replicated is float32[3, 2] with digest ",
            "plan/leaves/table/capacity/0 is 20 on processes 0, 2, but 21 on process 1",
            "cluster/inter_gbps is 1 on processes 0, 1, but 2 on process 2",
            "seed is 0 on processes 0, 1, but 1 on process 2",
        ):
            assert line in output
        assert "sharded" not in output and "zen_jax" not in output


UNEVEN = """
import sys
import jax
import zen_jax as zen

count, index = int(sys.argv[2]), int(sys.argv[3])
jax.config.update("jax_num_cpu_devices", 1 + index)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(sys.argv[1], count, index, initialization_timeout=60)
zen.check_agreement(seed=0)
try:
    zen.check_agreement(seed=index)
except ValueError as error:
    print(jax.device_count(), error)
"""


@pytest.mark.multiprocess
def test_processes_may_have_different_numbers_of_devices():
    for output in harness.outputs_of_processes(2, "-c", UNEVEN):
        assert "3 the processes disagree" in output and "seed is 0 on process 0, but 1 on process 1" in output


def test_gathering_again_compiles_nothing(caplog):
    """Benchmarks start their calls together by it: processes that still compile would slow them down."""
    numbers = np.zeros((3, 7), np.uint32)
    with jax.log_compiles():
        agreement.gather(numbers)
        assert "Compiling" in caplog.text
        caplog.clear()
        np.testing.assert_array_equal(agreement.gather(numbers + 1), [numbers + 1])
        assert "ompiling" not in caplog.text


class Torn:
    def to_json(self):
        raise RuntimeError("torn")


def test_a_value_that_fails_on_one_process_is_a_difference(monkeypatch):
    """Raising before the processes have met would leave the others waiting."""

    def lowering():
        raise ValueError("no such kernels")

    def gather(text):
        sound = text.replace(b"RuntimeError: torn", b"1").replace(b"ValueError: no such kernels", b"C++")
        sound = re.sub(rb"(version of \w+\": \")[^\"]+", rb"\1another", sound)
        return [text, sound if text.startswith(b"{") else b"another digest"]

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(agreement, "_lowering", lowering)
    monkeypatch.setattr(agreement, "_gather", gather)
    with pytest.raises(ValueError) as raised:
        check_agreement(plan=Torn(), kernels="the same")  # which hides no check
    for line in (
        "plan is RuntimeError: torn on process 0, but 1 on process 1",
        "lowering of kernels is ValueError: no such kernels on process 0, but C++ on process 1",
        f"version of jax is '{jax.__version__}' on process 0, but another on process 1",
        f"version of jaxlib is '{jaxlib.__version__}' on process 0, but another on process 1",
        f"version of zen_jax is '{__version__}' on process 0, but another on process 1",
    ):
        assert line in str(raised.value)
    monkeypatch.setattr(agreement, "_gather", lambda text: [text, text])
    with pytest.raises(ValueError, match="no such kernels"):
        check_agreement(plan=Torn())


def test_values_are_compared_by_what_they_are():
    one = {"x": jax.ShapeDtypeStruct((2, 3), np.float32), "y": None, "z": (1, "a"), "f": np.float64(0.5), "g": len}
    assert describe(one) == {
        "x": "float32[2, 3]",
        "y": "None",
        "z/0": "1",
        "z/1": "'a'",
        "f": "np.float64(0.5)",
        "g": "a builtin_function_or_method",
    }
    assert differences([describe(one), describe(one)]) == []
    kept = describe({"cluster": Cluster(3, inter_gbps=2.5), "profile": profile(np.ones((2, 4, 8), np.float32))})
    assert (kept["cluster/inter_gbps"], kept["profile/leaves/(array)/by_width/8/push"]) == ("2.5", "2")
    assert differences([{"a": "1"}, {}] + [{"a": "1"}] * 9) == [
        "a is 1 on processes 0, 2, 3, 4, 5, 6, 7, 8 and 2 more, but missing on process 1"
    ]


def test_paths_that_read_the_same_hide_nothing():
    assert describe({"a/b": 1, "a": {"b": 2}}) != describe({"a/b": 3, "a": {"b": 2}})


class Mode(enum.Enum):
    FAST = 1
    SAFE = 2


@dataclasses.dataclass
class Options:
    dtype: type
    mode: Mode
    nested: object = None


def test_options_are_compared_by_their_values():
    options = [
        Options(jnp.float32, Mode.FAST, Options(np.float16, Mode.FAST)),
        Options(jnp.bfloat16, Mode.FAST, Options(np.float16, Mode.FAST)),
        Options(jnp.float32, Mode.SAFE, Options(np.float16, Mode.FAST)),
        Options(jnp.float32, Mode.FAST, Options(np.float64, Mode.FAST)),
    ]
    described = [describe({"options": each}) for each in options]
    assert len({str(each) for each in described}) == len(options)
    assert described[0] == describe({"options": dataclasses.replace(options[0])})
    assert described[0]["options/nested/dtype"] == "'float16'"


@functools.partial(jax.tree_util.register_dataclass, data_fields=["rate"], meta_fields=["scheme"])
@dataclasses.dataclass
class Registered:
    rate: float
    scheme: str


def test_static_fields_are_compared():
    described = describe({"options": [Registered(0.1, "zen")]})
    assert described == {"options/0/rate": "0.1", "options/0/scheme": "'zen'"}


@pytest.mark.parametrize("make", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.int8, bool])
def test_arrays_are_compared_bit_by_bit(make, dtype):
    array = np.zeros((4, 3), dtype)
    other = array.copy()
    other[2, 1] = 1
    kept, changed, transposed = (describe({"x": make(each)})["x"] for each in (array, other, other.T))
    assert len({kept, changed, transposed}) == 3
    assert kept == describe({"x": make(array.copy())})["x"]
    assert changed == describe({"x": make(np.asfortranarray(other))})["x"]


def test_keys_objects_and_empty_arrays():
    keys = [jax.random.key(seed) for seed in (0, 1, 1)]
    zeros, ones, again = (describe({"key": key})["key"] for key in keys)
    assert zeros != ones == again
    assert describe({"x": np.array([None])}) == {"x": "object[1]"}
    assert describe({"x": np.zeros((0, 3))})["x"].startswith("float64[0, 3] with digest ")
