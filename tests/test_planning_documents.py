"""Profiles, plans and clusters edited by hand: what loads can be used, and anything else is refused by name."""

import contextlib
import copy
import json
import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import zen_jax as zen
from zen_jax.planning.cluster import Link

N = 3
KINDS = {"profile": zen.SparsityProfile, "plan": zen.Plan, "cluster": zen.Cluster}
NUMBERS = [0, 1, 2, -1, 0.5, 3.0, 5e-324, 1e308, math.nan, math.inf, -math.inf, 10**9, 2**63 - 1, 2**64, 10**400]
WORDS = ["", "3", "01f4", "nan", "f4", ">f4", "int32", "float8_e4m3fn", "longdouble", "object", "\ud800", True, None]
CONTAINERS = [[], {}, [[]], [1.5], ["a"], [10**9, 10**9], [2] * 70, {"1": 1}, {"x": {}}, [None]]


@pytest.fixture(scope="module")
def documents():
    """A valid document of each kind."""
    gradients = {"table": np.zeros((N, 40, 8), np.float32), "bias": np.ones((N, 6), np.float32)}
    gradients["table"][:, :3] = 1
    profile = zen.profile(gradients)
    cluster = zen.Cluster(
        N, 2, intra_gbps=9.0, collectives={"psum": Link(30.0, 1.0)}, kernels={"partition": zen.KernelCost(1e-10, 1e-9)}
    )
    leaves = {
        "table": zen.LeafPlan((40, 8), "float32", "zen", unit=4, capacity=(3, 4)),
        "bias": zen.LeafPlan((6,), "bfloat16", "dense", bucket=0),
    }
    valid = {"profile": profile, "plan": zen.Plan(N, leaves), "cluster": cluster}
    return {kind: json.loads(json.dumps(document.to_json())) for kind, document in valid.items()}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("documents") / "document.json"


def load(file, kind, document):
    file.write_text(json.dumps(document))
    return KINDS[kind].load(file)


def places(document, path=()):
    """The path of every entry, at any depth."""
    keys = document if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ()
    for key in keys:
        yield (*path, key)
        yield from places(document[key], (*path, key))


def changed(document, path, value):
    """The document with another value at a path, or without it if the value is ..."""
    document = copy.deepcopy(document)
    *outer, key = path
    entry = document
    for each in outer:
        entry = entry[each]
    if value is ...:
        del entry[key]
    else:
        entry[key] = value
    return document


def use(document, profile):
    """Whatever a document that loads is for: a ValueError at worst, and no number that is not finite."""
    str(document), hash(document)
    if isinstance(document, zen.Plan):
        return
    profile, cluster = (profile, document) if isinstance(document, zen.Cluster) else (document, zen.Cluster(document.n))
    results = []
    with contextlib.suppress(ValueError):
        results += [zen.estimate(profile, cluster), zen.plan(profile, cluster)]
        results.append(zen.simulate(profile, cluster, workers=(2, 64)))
    for result in results:
        assert str(result) and json.dumps(result.to_json(), allow_nan=False)


@settings(max_examples=500)
@given(data=st.data())
def test_whatever_is_changed(documents, file, data):
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    document = documents[kind]
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(list(places(document))))
        document = changed(document, path, data.draw(st.sampled_from([*NUMBERS, *WORDS, *CONTAINERS, ...])))
    try:
        loaded = load(file, kind, document)
    except ValueError as error:
        assert str(error).startswith(str(file))
        assert str(error).endswith("again.") and ".. " not in str(error)
        return
    use(loaded, load(file, "profile", documents["profile"]))


ROWS = ("leaves", "table", "by_width", "8")


@pytest.mark.parametrize(
    "kind,path,value,fragment",
    [
        ("profile", ("steps",), ..., "profile: it lacks 'steps'. Save"),
        ("profile", ("leaves",), 3, "leaves=3 must be a JSON object"),
        ("profile", ("leaves", "table", "shape"), 160, "leaves['table']: shape=160 must be a JSON list"),
        ("profile", ("leaves", "table", "dtype"), "f8", "leaves['table']: dtype='f8' is unknown. Use one of 'float32'"),
        ("profile", (*ROWS, "push"), 41, "leaves['table']: by_width['8']: push=41 exceeds the 40 units"),
        ("profile", (*ROWS, "unions"), [], "the length of unions=0"),
        ("profile", (*ROWS, "unions", 0), 5e-324, "unions=(5e-324, 3.0, 3.0) grow faster"),
        ("profile", (*ROWS, "partition_skewness"), 3, "partition_skewness=3 must be a JSON object"),
        ("profile", (*ROWS, "partition_skewness", "2"), 2**64, "[2]=18446744073709551616 must be a number from 1 to 2"),
        ("profile", (*ROWS, "partition_skewness", str(2**64)), 1, "partitions=18446744073709551616 must be at most"),
        ("plan", ("leaves", "table", "shape"), [2**62, 4], "but no array has 2**63"),
        ("plan", ("leaves", "table", "shape", 1), 2**57 + 1, "unit=4 must divide the 144115188075855873 columns"),
        ("plan", ("leaves", "bias", "colour"), "red", "leaves['bias']:"),
        ("plan", ("leaves", "table", "capacity"), "12", "capacity='12'"),
        ("plan", ("leaves", "table", "dtype"), "01f4", "has an invalid shape, dtype or capacity"),
        ("cluster", ("devices_per_host",), 10**400, "devices_per_host=1000"),
        ("cluster", ("hosts",), 10**9, "hosts=1000000000 must be at most 65535"),
        ("cluster", ("inter_gbps",), 1e-320, "inter_gbps=1e-320 must be a number from 1e-09 to 1e+09"),
        ("cluster", ("latency_us",), 1e308, "latency_us=1e+308 must be a number from 0 to 1e+12"),
        ("cluster", ("kernels", "partition", "dense"), 1e308, "kernels['partition']: dense=1e+308"),
        ("cluster", ("collectives", "psum", "gbps"), math.nan, "collectives['psum']: gbps=nan"),
        ("cluster", ("collectives",), [], "collectives=[] must be a JSON object"),
        ("cluster", ("zen_jax",), ["cluster"], "is not a zen_jax cluster. Save"),
    ],
)
def test_what_is_wrong_is_named(documents, file, kind, path, value, fragment):
    with pytest.raises(ValueError) as refused:
        load(file, kind, changed(documents[kind], path, value))
    assert fragment in str(refused.value)


def test_numbers_that_no_float_holds(documents, file):
    huge = 10**308
    document = changed(documents["profile"], (*ROWS, "units"), huge)
    with pytest.raises(ValueError, match="no usable profile"):
        load(file, "profile", changed(document, (*ROWS, "unions"), [huge] * N))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "content",
    [b"", b"\0", b"\xff\xfe{", b'{"t\xe4ble": 1}', b"[" * 100_000, b"9" * 5000, b'"x"', b"null"],
    ids=lambda content: repr(content[:9]),
)
def test_files_that_are_no_documents(file, kind, content):
    file.write_bytes(content)
    with pytest.raises(ValueError, match=f"is not a zen_jax {kind}"):
        KINDS[kind].load(file)
    with pytest.raises(OSError):
        KINDS[kind].load(file.parent)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_is_named():
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        zen.Cluster(N).save("/dev/full")
