"""One of several processes over gloo. argv: coordinator address, process count, rank, and schemes if not all.

Prints a digest.
"""

import hashlib
import sys
from functools import partial

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec


def main(address, count, rank, *chosen):
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, count, rank, initialization_timeout=60)
    assert jax.process_count() == count == jax.device_count()
    mesh = jax.make_mesh((count,), ("data",), axis_types=(AxisType.Auto,))
    per_worker, replicated = PartitionSpec("data"), PartitionSpec()

    def spmd(worker, out_specs=replicated):
        mapped = jax.shard_map(lambda x: worker(x[0]), mesh=mesh, in_specs=per_worker, out_specs=out_specs)
        step = jax.jit(mapped)

        def run(stack):
            mine = NamedSharding(mesh, per_worker)
            placed = jax.make_array_from_callback(stack.shape, mine, lambda index: stack[index])
            return jax.tree.map(lambda out: np.asarray(out.addressable_data(0)), step(placed))

        return run

    psum = spmd(lambda x: jax.lax.psum(x, "data"))
    digest = check_schemes(spmd, psum, count, chosen)
    if not chosen:
        check_bfloat16(spmd, psum, count)
        check_row_sparse(spmd, count)
    print("digest", digest, flush=True)
    jax.distributed.shutdown()


def check_schemes(spmd, psum, count, chosen):
    """Sums have the bits of psum and NumPy, and each scheme took all its paths; returns the digest of all results."""
    import oracle
    from cases import assert_same_bits, structured

    import zen_jax as zen

    digest = hashlib.sha256()
    schemes = {name: {"scheme": name} for name in chosen or zen.schemes.names() if name != "dense"}
    if not chosen:
        schemes["zen, several rungs"] = {"scheme": "zen", "unit": "element", "capacity": (1, 2)}
        schemes["zen, others pull"] = {"scheme": "zen", "pull_format": "others"}
        schemes["zen, other formats"] = {"scheme": "zen", "push_format": "bitmap", "pull_format": "bitmap"}
    always_dense, sometimes_dense = {"dense_ordered"}, {"auto", "agsparse", "sparcml"}
    for scheme, options in schemes.items():
        reduce = spmd(lambda x, options=options: zen.all_reduce(x, "data", op="sum", return_info=True, **options))
        expected = oracle.recursive_doubling if scheme == "sparcml" else oracle.ordered_sum
        dense_taken, rounds = set(), set()
        for integers in (True, False):
            for name, stack in structured(count, (61, 4), integers=integers).items():
                reduced, info = reduce(stack)
                if integers:
                    assert_same_bits(reduced, psum(stack), f"{scheme}, {name}")
                assert_same_bits(reduced, expected(stack), f"{scheme}, {name}")
                assert_same_bits(reduce(stack)[0], reduced, f"{scheme}, {name}: rerun")
                dense_taken.add(float(info.dense_taken))
                rounds.add(float(info.rounds))
                digest.update(reduced.tobytes())
                for field in info:
                    digest.update(field.tobytes())
        assert ("capacity" in options) == (len(rounds - {0.0, 1.0}) > 0), f"{scheme}: {rounds}"
        # Schemes that may go dense must have gone both ways, or one way was not tested.
        ways = {1.0} if scheme in always_dense else {0.0, 1.0} if scheme in sometimes_dense else {0.0}
        assert dense_taken == ways, f"{scheme}: {dense_taken}"
    return digest.hexdigest()


def check_bfloat16(spmd, psum, count):
    """XLA on CPUs would widen 16-bit floats in collectives: these schemes send integers instead."""
    from cases import assert_same_bits, structured

    import zen_jax as zen

    for scheme in ("dense", "dense_ordered", "auto"):
        reduce = spmd(lambda x, scheme=scheme: zen.all_reduce(x, "data", op="sum", scheme=scheme))
        for name, stack in structured(count, (61, 4), integers=True).items():
            halves = stack.astype(jax.numpy.bfloat16)
            assert_same_bits(reduce(halves), psum(halves), f"{scheme}, bfloat16, {name}")


def check_row_sparse(spmd, count):
    """Rows so wide that messages have several sizes, spread over servers and all on one: all choose the same size."""
    import oracle
    from cases import assert_same_bits

    import zen_jax as zen

    entries, num_rows, width = 12, 1000, 2000
    rows = np.random.default_rng(0).standard_normal((count, entries, width), np.float32)
    of_last = np.flatnonzero(oracle.server_of(np.arange(num_rows), count) == count - 1)
    update = zen.synchronize("data", op="sum", dense_below=0).update
    for ids in (np.arange(entries, dtype=np.int32), of_last[:entries].astype(np.int32)):
        gradient = partial(zen.RowSparseGradient.from_lookups, ids, num_rows=num_rows)
        reduced = spmd(lambda rows, gradient=gradient: update(gradient(rows), None)[0])(rows)
        np.testing.assert_array_equal(reduced.ids[:entries], ids)
        assert_same_bits(reduced.rows[:entries], oracle.ordered_sum(rows), f"row-sparse, {ids}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
