"""The gradients of real data that benchmarks measure: tiny copies of every data set."""

import gzip
import io

import numpy as np
import pytest

from benchmarks import workloads


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A tiny copy of every data set, in the format of the real ones."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    words = [f"word{i}" for i in range(60)]

    def sentence(length):
        return " ".join(rng.choice(words, length, p=1 / np.arange(1, 61) / np.sum(1 / np.arange(1, 61))))

    def write(name, file, lines):
        (folder / name).mkdir(exist_ok=True)
        with gzip.open(folder / name / file, "wt", encoding="utf-8") as out:
            out.writelines(line + "\n" for line in lines)

    write("gutenberg_lm", "train.txt.gz", [sentence(200) for _ in range(200)])
    write("tatoeba_fra_eng", "train.tsv.gz", [f"{sentence(6)}\t{sentence(7)}" for _ in range(600)])
    write("goemotions", "train.tsv.gz", [f"{i % 28}\t{sentence(9)}" for i in range(2100)])
    (folder / "nycflights_ctr").mkdir()
    np.savez(
        folder / "nycflights_ctr" / "data.npz",
        split=np.repeat(np.array([0, 1], np.uint8), [4200, 100]),
        field_names=np.array(["a", "b"]),
        cardinality=np.array([30, 50]),
        f_a=rng.integers(0, 30, 4300),
        f_b=rng.integers(0, 50, 4300),
    )
    return folder


@pytest.mark.parametrize("name", [*workloads.DATA_SETS, "synthetic:0.02"])
def test_workload_names_the_rows_of_each_worker(data, name):
    workload = workloads.load(name, data)
    touched = workload.touched(4, step=1)
    assert touched.shape == (4, workload.rows)
    assert touched.any(axis=1).all()
    for worker in range(4):
        batch = workload.batch(4, worker, 1)
        assert set(np.flatnonzero(touched[worker])) == set(batch.tolist())
        assert 0 <= batch.min() and batch.max() < workload.rows
    assert (workload.touched(4, step=1) == touched).all()
    assert workload.batch(4, 0, 0).tolist() != workload.batch(4, 0, 1).tolist()


@pytest.mark.parametrize("name", workloads.DATA_SETS)
def test_workload_refuses_more_workers_than_it_has_data_for(data, name):
    workload = workloads.load(name, data)
    workload.touched(workload.max_workers, step=0)
    with pytest.raises(ValueError, match=f"data for {workload.max_workers} workers"):
        workload.touched(workload.max_workers + 1, step=0)


def test_rows_are_numbered_by_falling_frequency(data):
    workload = workloads.load("goemotions", data)
    drawn = np.concatenate([workload.batch(2, worker, step) for worker in range(2) for step in range(4)])
    counts = np.bincount(drawn, minlength=workload.rows)
    assert counts[: workload.rows // 2].sum() > 2 * counts[workload.rows // 2 :].sum()


def test_language_model_reads_on_where_it_stopped(data):
    workload = workloads.load("gutenberg_lm", data)
    first, second = (workload.batch(2, 0, step).reshape(128, 35) for step in (0, 1))
    text = gzip.open(data / "gutenberg_lm" / "train.txt.gz", "rt").read().replace("\n", " <eos> ").split()
    numbers = dict(zip(text, np.concatenate([first, second], axis=1)[0], strict=False))
    assert [numbers[word] for word in text[:70]] == [*first[0], *second[0]]


def test_a_synthetic_gradient_is_never_empty():
    assert workloads.load("synthetic:1e-6").touched(2, step=0).sum(axis=1).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("name", "folder", "message"),
    [
        ("nothing", "data", "'nothing' is unknown. Use one of gutenberg_lm"),
        ("goemotions", None, "--data"),
        ("goemotions", "empty", "No such file"),
        ("synthetic:2", None, "density above 0 and up to 1"),
        ("synthetic:much", None, "density above 0 and up to 1"),
    ],
)
def test_unusable_workload_is_refused(data, tmp_path, name, folder, message):
    with pytest.raises(ValueError, match=message):
        workloads.load(name, {"data": data, "empty": tmp_path, None: None}[folder])


def npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        ("gutenberg_lm", "train.txt.gz", b"plain text", "Not a gzipped file"),
        ("gutenberg_lm", "train.txt.gz", gzip.compress(b"cut off")[:-9], "ended before the end-of-stream marker"),
        ("gutenberg_lm", "train.txt.gz", gzip.compress(b"")[:10] + bytes([255] * 20), "Error -3 while decompressing"),
        ("gutenberg_lm", "train.txt.gz", gzip.compress(b"latin-1: \xe9\n"), "can't decode byte 0xe9"),
        ("tatoeba_fra_eng", "train.tsv.gz", gzip.compress(b"one column\n"), "list index out of range"),
        ("nycflights_ctr", "data.npz", b"", "No data left in file"),
        ("nycflights_ctr", "data.npz", npz(split=[0])[:-30], "File is not a zip file"),
        ("nycflights_ctr", "data.npz", npz(split=[0]), "cardinality is not a file in the archive"),
    ],
    ids=["not gzip", "cut off", "not deflate", "not UTF-8", "no second column", "empty", "half a zip", "no such array"],
)
def test_a_damaged_workload_is_refused(tmp_path, name, file, content, message):
    (tmp_path / name).mkdir()
    (tmp_path / name / file).write_bytes(content)
    with pytest.raises(ValueError, match=f"^workload '{name}' cannot be read from .*{message}.*Put an undamaged copy"):
        workloads.load(name, tmp_path)
