"""Real processes over gloo agree with psum and with each other bit for bit, and never deadlock."""

from pathlib import Path

import harness
import pytest

WORKER = Path(__file__).parent / "worker_process.py"


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("count", "schemes"),
    [(2, ("auto", "zen")), (3, ()), (4, ("zen", "auto", "sparcml"))],
    ids=["2", "3", "4"],
)
def test_processes_agree(count, schemes):
    """Every scheme among three processes; four cover sparcml on a power of two."""
    outputs = harness.outputs_of_processes(count, str(WORKER), arguments=schemes)
    digests = {line for output in outputs for line in output.splitlines() if line.startswith("digest")}
    assert len(digests) == 1
