"""The DeepFM example on little data: it learns, zen changes no bit, and bad data is refused early."""

import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("flax")
pytest.importorskip("matplotlib")
pytest.importorskip("orbax.checkpoint")
pytest.importorskip("tqdm")

from example_runs import losses, refused, summary

from examples.common import app
from examples.deepfm import data
from examples.deepfm.main import EXAMPLE
from examples.deepfm.model import pairwise

pytestmark = [pytest.mark.promoting, pytest.mark.usefixtures("coarse_ladder")]  # flax promotes dtypes

TINY = "--dim 8 --hidden 8 --batch 64 --steps 8 --workers 4".split()
VALUES = np.array([7, 3000, 6000])


def flights(count: int = 400) -> dict[str, np.ndarray]:
    """The contents of data.npz, with labels that the first field decides."""
    rng = np.random.default_rng(0)
    fields = {f"f_{name}": rng.integers(0, values, count) for name, values in zip("abc", VALUES, strict=True)}
    return {
        "label": (fields["f_a"] > 3).astype(np.uint8),
        "split": np.where(np.arange(count) % 4 == 3, 1, 0).astype(np.uint8),
        "field_names": np.array([*"abc"]),
        "cardinality": VALUES,
        **fields,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flights")
    np.savez(folder / "data.npz", **flights())
    return folder


@pytest.fixture(scope="module")
def trained(folder):
    sync = ["--sync", "zen,dense_ordered,row_sparse"]
    assert app.main(EXAMPLE, ["--data", str(folder), "--out", str(folder / "out"), *TINY, *sync]) == 0
    return folder / "out"


def test_zen_gives_the_losses_of_a_dense_run_and_moves_fewer_bytes(trained):
    rows = summary(trained)
    assert rows["dense_ordered"]["steps_bitwise_equal"] == 8
    assert rows["zen"]["bytes_ratio"] < 1 / 3 and rows["zen"]["dense_share"] < 0.1
    of_steps = losses(trained / "zen" / "metrics.jsonl")
    assert of_steps[7] < of_steps[0] and rows["zen"]["validation"] > 0.6


def test_gradients_of_looked_up_rows_alone_train_as_dense_ones_do(trained):
    rows = summary(trained)
    # Adagrad leaves rows without a gradient alone; the backward pass may round differently.
    assert rows["row_sparse"]["max_relative_loss_difference"] < 1e-5
    assert rows["row_sparse"]["validation"] == pytest.approx(rows["zen"]["validation"], abs=1e-3)
    assert 0 < rows["row_sparse"]["bytes_ratio"] < 1 / 3


def test_ids_become_rows_behind_those_of_the_fields_before(folder):
    loaded, saved = data.load(folder, seed=0), flights()
    train = saved["split"] == 0
    expected = np.stack([saved["f_a"], saved["f_b"] + 7, saved["f_c"] + 3007], axis=1)
    assert loaded.rows == 9007
    np.testing.assert_array_equal(loaded.train.rows, expected[train])
    np.testing.assert_array_equal(loaded.valid.rows, expected[~train])
    np.testing.assert_array_equal(loaded.valid.labels, saved["label"][~train])


def test_the_synthetic_set_lies_in_its_table_and_can_be_learnt():
    dataset = data.load(None, seed=0)
    assert 0 <= dataset.train.rows.min() and dataset.train.rows.max() < dataset.rows
    assert np.unique(dataset.train.rows[:500]).size < dataset.rows / 10
    # The examples with a frequent value predict the labels of other examples with it.
    train, valid = dataset.train, dataset.valid
    rates = np.bincount(train.rows[:, 0], train.labels) / np.bincount(train.rows[:, 0])
    assert data.auc(rates[valid.rows[:, 0]], valid.labels) > 0.52
    assert data.load(None, seed=0).train.labels.tobytes() == train.labels.tobytes()


def test_auc_counts_ordered_pairs():
    rng = np.random.default_rng(0)
    scores, labels = rng.integers(0, 9, 50), rng.integers(0, 2, 50)
    pairs = scores[labels == 1][:, None] - scores[labels == 0][None, :]
    assert data.auc(scores, labels) == pytest.approx(np.mean((pairs > 0) + 0.5 * (pairs == 0)), rel=1e-12)
    assert data.auc(scores, np.ones(50)) is None


def test_pairwise_sums_all_products_of_two_fields():
    vectors = np.random.default_rng(0).normal(size=(3, 4, 5))
    expected = [sum(v[i] @ v[j] for i in range(4) for j in range(i)) for v in vectors]
    np.testing.assert_allclose(pairwise(jnp.asarray(vectors, jnp.float32)), expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": None}, "label"),
        ({"f_b": None}, "f_b"),
        ({"f_b": np.full(400, 3000)}, "ids of f_b from 0 to 2999, but they range from 3000 to 3000"),
        ({"f_b": np.full(400, -1)}, "ids of f_b from 0 to 2999, but they range from -1 to -1"),
        ({"f_b": np.append(np.zeros(399), 2.5)}, "f_b[399] is 2.5, not an integer"),
        ({"f_b": np.append(np.zeros(399), np.nan)}, "f_b[399] is nan, not an integer"),
        ({"f_c": np.zeros(399, np.int64)}, "lengths differ"),
        ({"label": np.append(np.ones(399), np.nan)}, "label[399] is nan, not 0 or 1"),
        ({"label": np.append(np.ones(399, int), 2)}, "label[399] is 2, not 0 or 1"),
        ({"cardinality": VALUES[:2]}, "lengths differ"),
        ({"split": np.ones(400, np.uint8)}, "too few for a step of 8 workers"),
    ],
)
def test_another_data_npz_ends_with_exit_code_2(tmp_path, capsys, change, message):
    arrays = {name: array for name, array in (flights() | change).items() if array is not None}
    np.savez(tmp_path / "data.npz", **arrays)
    assert message in complaint(tmp_path, capsys)


@pytest.mark.parametrize("content", [None, b"", b"no archive", b"PK\x03\x04 cut"])
def test_a_file_that_is_no_archive_ends_with_exit_code_2(tmp_path, capsys, content):
    if content is not None:
        (tmp_path / "data.npz").write_bytes(content)
    assert "data.npz: expected the data.npz of nycflights_ctr" in complaint(tmp_path, capsys)


def complaint(folder, capsys) -> str:
    return refused(app.main(EXAMPLE, ["--data", str(folder), "--out", str(folder / "out")]), capsys)
