"""What all examples share: a small one is trained, stopped, resumed and refused."""

import dataclasses
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("orbax.checkpoint")
pytest.importorskip("tqdm")

import zen_jax as zen
from examples.common import app, config, launch
from examples.common.config import option
from examples.common.task import Task

pytestmark = pytest.mark.promoting  # Orbax promotes dtypes


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    rows: int = option(40, "rows of the table", least=1)
    workers: int = option(4, "workers", least=1)
    steps: int = option(8, "steps", least=1)


def counting(config: Config) -> Task:
    """Rows of a table that learn a number, sparsified, with a count that each worker carries along."""

    def batch(step, workers):
        return np.stack([np.random.default_rng((step, worker)).integers(0, config.rows, 6) for worker in workers])

    def loss(params, carry, ids, key):
        noise = jax.random.normal(key, ids.shape)
        return jnp.mean((params["table"][ids, 0] - 1 + 0.1 * noise) ** 2) + 0.01 * jnp.sin(carry), carry + 1

    return Task(
        lines=(f"table    {config.rows} rows",),
        items="rows",
        items_per_step=6 * config.workers,
        params={"table": jnp.zeros((config.rows, 2))},
        batch=batch,
        loss=loss,
        optimizer=optax.adam(config.learning_rate),
        metric="mean",
        validate=lambda params: float(jnp.mean(params["table"])),
        carry=jnp.zeros(()),
        sparsifier=zen.top_k(0.1),
        synchronize={"unit": "element"},
    )


EXAMPLE = app.Example("tests.test_examples", "Counts.", Config, counting)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run of 8 steps that nothing stopped."""
    out = tmp_path_factory.mktemp("straight")
    assert run(out, "--steps", "8") == 0
    return losses(out)


def run(out: Path, *options: str) -> int:
    return app.main(EXAMPLE, ["--out", str(out), "--sync", "zen", "--workers", "4", *options])


def losses(out: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (out / "zen" / "metrics.jsonl").read_text().splitlines()]


def test_a_resumed_run_is_bitwise_the_one_that_was_never_stopped(tmp_path, straight):
    assert run(tmp_path, "--steps", "7", "--checkpoint-every", "3") == 0  # its seventh step is lost
    assert run(tmp_path, "--steps", "8", "--checkpoint-every", "3", "--resume") == 0
    assert losses(tmp_path) == straight
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["runs"][0]["steps"] == 8


def test_resuming_before_the_first_checkpoint_starts_at_the_beginning(tmp_path, straight):
    assert run(tmp_path, "--resume") == 0
    assert losses(tmp_path) == straight


def test_another_number_of_workers_goes_on_where_the_others_stopped(tmp_path, straight):
    assert run(tmp_path, "--steps", "4", "--checkpoint-every", "4") == 0
    assert run(tmp_path, "--steps", "8", "--workers", "2", "--resume") == 0
    assert losses(tmp_path)[:4] == straight[:4] and len(losses(tmp_path)) == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "holds checkpoints"),
        (["--resume", "--rows", "41"], "rows=40, but this run has rows=41"),
        (["--resume", "--learning-rate", "0.2"], "learning_rate=0.1"),
    ],
)
def test_another_runs_checkpoint_is_refused_and_kept(tmp_path, capsys, options, message):
    assert run(tmp_path, "--steps", "2", "--checkpoint-every", "2") == 0
    before = losses(tmp_path)
    assert run(tmp_path, *options) == 2
    assert message in capsys.readouterr().err
    assert losses(tmp_path) == before and (tmp_path / "zen" / "checkpoints" / "2").is_dir()


def test_a_checkpoint_of_another_version_is_refused(tmp_path, capsys, monkeypatch):
    assert run(tmp_path, "--steps", "2", "--checkpoint-every", "2") == 0
    monkeypatch.setattr(zen, "__version__", "9.9.9")
    assert run(tmp_path, "--resume") == 2
    assert "zen_jax=0" in (error := capsys.readouterr().err) and "9.9.9" in error


def test_rank_from_the_environment(monkeypatch):
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "host:1234")
    monkeypatch.setenv("NUM_PROCESSES", "4")
    monkeypatch.setenv("PROCESS_ID", "3")
    assert launch.rank_from(None, None, None) == launch.Rank("host:1234", 4, 3)
    monkeypatch.setenv("PROCESS_ID", "4")
    with pytest.raises(ValueError, match="below --num-processes"):
        launch.rank_from(None, None, None)


def test_a_failed_process_ends_the_others_and_says_why(tmp_path, capfd):
    script = tmp_path / "script.py"
    script.write_text("import sys, time\nif sys.argv[-1] == '1': sys.exit('out of paper')\ntime.sleep(60)\n")
    assert launch.start([sys.executable, str(script)], 3) == 1
    assert "process 1 of 3 ended with exit code 1" in (error := capfd.readouterr().err) and "out of paper" in error
