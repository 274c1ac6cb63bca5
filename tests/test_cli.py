"""`zen-jax`: what it prints equals the Python API, bad input gets one line and exit code 2, examples run as shown."""

import contextlib
import errno
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
import zipfile
from importlib import import_module
from pathlib import Path

import jax
import numpy as np
import pytest

import zen_jax as zen
from zen_jax.cli import gradients, output
from zen_jax.cli.main import BAD_INPUT, COMMANDS, DONE, FAILED, main, parser, script

ROOT = Path(__file__).parents[1]
N = 4
LINKS = ("--gbps", "1", "--latency-us", "20")
CLUSTER = zen.Cluster(N, inter_gbps=1.0, latency_us=20.0)


def gradient(n=N):
    return gradients.synthetic(n, rows=64, columns=8, density=0.1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files that a newcomer might have, good and bad."""
    jax.devices()  # before `bench` could choose how many there are
    folder = tmp_path_factory.mktemp("cli")
    np.savez(folder / "good.npz", **gradient())
    np.savez(folder / "three.npz", **gradient(3))
    np.savez(folder / "one.npz", **gradient(1))
    np.savez(folder / "empty.npz")
    np.savez(folder / "pickled.npz", a=np.array([{}, 1], dtype=object))
    np.savez(folder / "void.npz", a=np.ones((2, 3), jax.numpy.bfloat16))
    np.savez(folder / "integers.npz", a=np.ones((2, 3), np.int32))
    np.savez(folder / "words.npz", a=np.array([["a"], ["b"]]))
    np.savez(folder / "nameless.npz", **{"": np.ones((2, 3), np.float32)})
    with zipfile.ZipFile(folder / "note.npz", "w") as note:
        note.writestr("note.txt", "gradients of step 1")
    np.savez(folder / "uneven.npz", a=np.ones((2, 3)), b=np.ones((3, 3)))
    np.savez(folder / "scalar.npz", a=np.ones(()))
    np.savez(folder / "nobody.npz", a=np.ones((0, 3)))
    np.save(folder / "array.npy", np.ones(3))
    (folder / "text.npz").write_text("no zip")
    with zipfile.ZipFile(folder / "damaged.npz", "w") as damaged:  # an array's header that no tokenizer ends
        damaged.writestr("a.npy", b"\x93NUMPY\x01\x00\x10\x00{'descr': 1234  \n")
    (folder / "cut.npz").write_bytes((folder / "good.npz").read_bytes()[:900])
    assert main(["profile", str(folder / "good.npz"), "--unit", "row", "--save", str(folder / "profile.json")]) == DONE
    saved = (folder / "profile.json").read_text()
    (folder / "newer.json").write_text(saved.replace('"version": 1', '"version": 99'))
    (folder / "cut.json").write_text(saved[:200])
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "unmeasured.json").write_text(saved.replace('"push"', '"pushed"'))
    (folder / "negative.json").write_text(re.sub('"push": [0-9]+', '"push": -1', saved))
    zen.profile({"nothing": np.zeros((N, 0, 3), np.float32)}).save(folder / "nothing.json")
    zen.profile(gradient(1), unit="row").save(folder / "alone.json")
    zen.plan(zen.SparsityProfile.load(folder / "profile.json"), CLUSTER).save(folder / "plan.json")
    return folder


@pytest.fixture
def zen_jax(folder, capsys, monkeypatch):
    """Runs `zen-jax` in the folder: (exit code, standard output, standard error)."""
    monkeypatch.chdir(folder)

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def profile(folder):
    return zen.SparsityProfile.load(folder / "profile.json")


def plain(value):
    """The value as JSON returns it."""
    return json.loads(json.dumps(value))


# --- what it prints ---------------------------------------------------------------------------------------------


def test_profile(zen_jax, profile):
    code, printed, _ = zen_jax("profile", "good.npz", "--unit", "row", "--json", "-")
    measured = zen.profile(gradient(), unit="row")
    assert code == DONE
    assert json.loads(printed) == plain(measured.to_json()) == plain(profile.to_json())
    assert zen_jax("profile", "good.npz", "good.npz", "--unit", "8")[1] == f"{zen.profile(*[gradient()] * 2, unit=8)}\n"


def test_plan(zen_jax, profile, folder):
    plan = zen.plan(profile, CLUSTER, schemes=("dense", "zen"))
    code, printed, _ = zen_jax("plan", "profile.json", *LINKS, "--schemes", "dense,zen", "--save", "saved.json")
    assert code == DONE
    assert printed.startswith(f"{plan}\n")
    assert zen.Plan.load(folder / "saved.json") == plan
    code, printed, _ = zen_jax(
        "plan", "profile.json", *LINKS, "--schemes", "dense,zen", "--save", "2.json", "--json", "-"
    )
    assert zen.Plan.load(folder / "2.json") == plan and json.loads(printed) == plain(plan.to_json())


def test_plan_says_what_it_gains(zen_jax, profile):
    (ms, megabytes), (dense_ms, dense_megabytes) = (
        (seconds * 1e3, nbytes / 1e6)
        for seconds, nbytes in map(zen.estimate(profile, zen.Cluster(N, inter_gbps=0.001)).total, ("zen", "dense"))
    )
    gain = f"{ms:.3f} ms and {megabytes:.3f} MB a step; dense {dense_ms:.3f} ms and {dense_megabytes:.3f} MB;"
    slow = ("--gbps", "0.001", "--schemes", "dense,zen")
    assert (
        zen_jax("plan", "profile.json", *slow)[1]
        .splitlines()[-1]
        .startswith(f"estimated: {gain} compute time is left out")
    )


def test_estimate(zen_jax, profile):
    estimate = zen.estimate(profile, CLUSTER)
    assert zen_jax("estimate", "profile.json", *LINKS)[:2] == (DONE, f"{estimate}\n")
    assert json.loads(zen_jax("estimate", "profile.json", *LINKS, "--json", "-")[1]) == plain(estimate.to_json())
    # Hosts follow from the profile's workers.
    two_a_host = zen.estimate(profile, zen.Cluster(2, 2, 1.0, 100.0, 20.0, intra_latency_us=5))
    inside = ("--devices-per-host", 2, "--intra-gbps", 100, "--intra-latency-us", 5)
    code, printed, _ = zen_jax("estimate", "profile.json", *LINKS, *inside)
    assert (code, printed) == (DONE, f"{two_a_host}\n")


def test_a_profile_of_hosts_is_of_their_devices(zen_jax):
    """The cluster follows from it, and another one is refused: a plan for as many single devices would be too small."""
    shared = zen.profile(gradient(), unit="row", devices_per_host=2)
    shared.save("hosts.json")
    estimate = zen.estimate(shared, zen.Cluster(N, 2, inter_gbps=1.0, latency_us=20.0))
    assert zen_jax("estimate", "hosts.json", *LINKS)[:2] == (DONE, f"{estimate}\n")
    assert "profile of 4 hosts with 2 devices each" in zen_jax("profile", "good.npz", "--devices-per-host", 2)[1]
    code, _, said = zen_jax("plan", "hosts.json", "--hosts", 2)
    assert (code, "4 hosts with 2 devices each, but the cluster has 2 hosts" in said) == (BAD_INPUT, True)


def test_simulate(zen_jax, profile):
    simulation = zen.simulate(profile, CLUSTER, workers=(2, 4, 8, 16))
    code, printed, said = zen_jax("simulate", "profile.json", "--max-workers", 17, *LINKS)
    assert (code, printed) == (DONE, f"{simulation}\n")
    assert "up to 16" in said
    found = json.loads(zen_jax("simulate", "profile.json", "--max-workers", 16, *LINKS, "--json", "-")[1])
    assert found == plain(simulation.to_json())
    for point, shown in zip(simulation.points, found["points"], strict=True):
        estimate = zen.estimate(profile, CLUSTER) if point.n == N else point.estimate
        chosen = estimate.leaves["embedding"][point.choice["embedding"]]
        assert shown["speed_up"] == pytest.approx(estimate.leaves["embedding"]["dense"].seconds / chosen.seconds)
        assert shown["planned"] == {"seconds": chosen.seconds, "bytes": chosen.nbytes}
        assert shown["lower bound"]["bytes"] == estimate.bounds["embedding"].nbytes


def test_simulate_fills_hosts(zen_jax):
    code, printed, _ = zen_jax("simulate", "profile.json", "--devices-per-host", 2, "--max-workers", 8, "--json", "-")
    assert code == DONE
    assert [point["n"] for point in json.loads(printed)["points"]] == [2, 4, 8]


def test_info(zen_jax):
    code, printed, _ = zen_jax("info", "--json", "-")
    found = json.loads(printed)
    assert code == DONE
    assert (found["zen_jax"], found["jax"]) == (zen.__version__, jax.__version__)
    assert found["kernels"] == zen.backend_info()
    assert [device["id"] for device in found["devices"]] == [device.id for device in jax.devices()]
    assert zen.__version__ in zen_jax("info")[1]


def test_bench(zen_jax):
    """Each scheme moves as many bytes as estimated, every figure is present, and the table shows them."""
    several = ("bench", "good.npz", "good.npz", "--schemes", "agsparse", "--repeats", 3, *LINKS)
    code, printed, said = zen_jax(
        *several, "--json", "bench.json", "--plot", "bench.svg", "--save-cluster", "links.json"
    )
    found = json.loads(Path("bench.json").read_text())
    profile = zen.profile(gradient(), gradient())
    estimate = zen.estimate(profile, zen.Cluster(1, N, inter_gbps=1.0, latency_us=20.0))
    assert code == DONE
    assert Path("bench.svg").stat().st_size
    assert (found["n"], found["processes"], found["platform"]) == (N, 1, "cpu")
    assert {row["scheme"] for row in found["schemes"]} == {"dense", "agsparse"}
    dense = next(row for row in found["schemes"] if row["scheme"] == "dense")
    for row in found["schemes"]:
        assert (row["estimate"], row["bytes"]) == pytest.approx(estimate.total(row["scheme"]))
        seconds = row["seconds"]
        assert len(seconds["all"]) == 3
        assert 0 < seconds["min"] <= seconds["median"] <= seconds["max"]
        assert row["speed_up"] == pytest.approx(dense["seconds"]["median"] / seconds["median"])
        assert re.search(rf"^{row['scheme']} +{seconds['median'] * 1e3:.2f} ", printed, re.MULTILINE)
    assert found["lower bound"]["bytes"] == estimate.bounds["embedding"].nbytes
    assert f"would choose: {found['choice']['embedding']} for embedding" in printed
    assert "timed call 3 of 3" in said
    assert zen_jax("estimate", "profile.json", "--cluster", "links.json")[:2] == (
        DONE,
        f"{zen.estimate(zen.SparsityProfile.load('profile.json'), zen.Cluster.load('links.json'))}\n",
    )
    assert (
        "Give it or --gbps, --latency-us, not both"
        in zen_jax("estimate", "profile.json", "--cluster", "links.json", *LINKS)[2]
    )
    assert "is not a zen_jax cluster" in zen_jax("plan", "profile.json", "--cluster", "profile.json")[2]


def test_bench_makes_gradients_up_and_keeps_float64(zen_jax, folder):
    made = ("--workers", 2, "--rows", 32, "--columns", 4, "--density", 0.5)
    code, printed, _ = zen_jax("bench", *made, "--schemes", "dense", "--repeats", 1, *LINKS, "--json", "-")
    assert (code, json.loads(printed)["n"]) == (DONE, 2)
    np.savez(folder / "double.npz", a=np.ones((2, 32, 4)))
    code, printed, _ = zen_jax("bench", "double.npz", "--schemes", "dense", "--repeats", 1, *LINKS, "--json", "-")
    assert (code, json.loads(printed)["schemes"][0]["bytes"]) == (DONE, 32 * 4 * 8)


def test_nobody_reads_what_it_prints(zen_jax, monkeypatch):
    """The reader of a pipe is gone, or there is no standard output; files are still written."""
    with unread() as pipe:
        for number, stdout in enumerate((pipe, None)):
            monkeypatch.setattr(sys, "stdout", stdout)
            assert main(["plan", "profile.json", "--save", f"unread{number}.json"]) == DONE
            assert zen.Plan.load(f"unread{number}.json").n == N
    assert main(["bench", "good.npz", "--schemes", "dense", "--repeats", "1", *map(str, LINKS)]) == DONE


def test_a_process_whose_reader_is_gone_ends_well(folder):
    """Python itself would complain of what it could not write, once more at its end."""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-m", "zen_jax.cli", "info"]
    with unread() as pipe:
        done = subprocess.run(command, cwd=folder, env=buffered, stdout=pipe, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (DONE, "")


def test_standard_error_is_closed(folder):
    """JSON stays JSON: progress does not take its place."""
    command = f'"{sys.executable}" -m zen_jax.cli profile good.npz --json - 2>&-'
    done = subprocess.run(command, shell=True, cwd=folder, stdout=subprocess.PIPE, text=True)
    assert (done.returncode, json.loads(done.stdout)["n"]) == (DONE, N)


def test_nobody_reads_of_progress_and_errors(zen_jax, monkeypatch):
    """Files are still written, and the exit code tells of a failure."""
    with unread() as output, unread() as errors:
        monkeypatch.setattr(sys, "stdout", output)
        monkeypatch.setattr(sys, "stderr", errors)
        assert main(["profile", "good.npz", "--save", "unread.json"]) == DONE
        assert zen.SparsityProfile.load("unread.json").n == N
        assert main(["plan", "absent.json"]) == BAD_INPUT


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_nobody_reads_what_a_full_disk_loses(zen_jax, monkeypatch):
    with unread() as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert main(["plan", "profile.json", "--save", "/dev/full"]) == FAILED


@contextlib.contextmanager
def unread():
    """A pipe whose reader is gone."""
    reader, writer = os.pipe()
    os.close(reader)
    with contextlib.suppress(BrokenPipeError), open(writer, "w") as pipe:
        yield pipe


def test_figures(zen_jax):
    pytest.importorskip("matplotlib")
    np.savez("private.npz", **{"_table$_$": gradient()["embedding"]})
    assert zen_jax("profile", "private.npz", "--unit", "row", "--plot", "profile.svg")[0] == DONE
    assert zen_jax("estimate", "profile.json", "--plot", "estimate.pdf")[0] == DONE
    assert zen_jax("plan", "profile.json", "--plot", "plan.svg")[0] == DONE
    assert zen_jax("plan", "nothing.json", "--plot", "nothing.svg")[0] == DONE
    assert zen_jax("simulate", "profile.json", "--max-workers", 8, "--plot", "simulate.png")[0] == DONE
    assert zen_jax("simulate", "nothing.json", "--max-workers", 8, "--latency-us", 0, "--plot", "none.svg")[0] == DONE
    assert re.search(r"<!-- density .*: _table.*\$_.*\$", Path("profile.svg").read_text())
    assert "as planned" in Path("plan.svg").read_text()
    assert Path("estimate.pdf").read_bytes().startswith(b"%PDF")
    assert Path("simulate.png").read_bytes().startswith(b"\x89PNG")


# --- help -------------------------------------------------------------------------------------------------------


def test_version(zen_jax):
    code, printed, _ = zen_jax("--version")
    assert (code, printed) == (0, f"zen-jax {zen.__version__}\n")


def test_alone_it_helps(zen_jax):
    code, printed, _ = zen_jax()
    assert code == DONE
    assert all(re.search(rf"^    {command} ", printed, re.MULTILINE) for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_examples_that_parse(zen_jax, command):
    code, printed, _ = zen_jax(command, "--help")
    assert code == DONE
    examples = re.findall(r"^  zen-jax (.*)$", printed.partition("examples:")[2], re.MULTILINE)
    assert examples
    for example in examples:
        assert parser().parse_args(shlex.split(example)).command == command


def test_commands_in_the_documentation_parse():
    pages = "\n".join(page.read_text() for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
    lines = re.findall(r"^zen-jax (.*?)(?: +#.*)?$", pages, re.MULTILINE)
    assert {line.split()[0] for line in lines} >= set(COMMANDS)
    for line in lines:
        assert parser().parse_args(shlex.split(line)).command in COMMANDS


def test_entry_point():
    module, name = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["zen-jax"].split(":")
    assert callable(getattr(import_module(module), name))


# --- bad input --------------------------------------------------------------------------------------------------

PLACE = "bench --coordinator host:7700 --num-processes 4 --process-id"


@pytest.mark.parametrize(
    "line,fragments",
    [
        ("prophecy", ("prophecy", "info", "--help")),
        ("profile", ("GRADIENTS.npz", "--help")),
        ("profile missing.npz", ("missing.npz", "No such file", "Check")),
        ("profile .", ("directory", "Check")),
        ("profile text.npz", ("text.npz is not a .npz", "numpy.savez")),
        ("profile cut.npz", ("cut.npz", "numpy.savez")),
        ("profile damaged.npz", ("damaged.npz cannot be read", "numpy.savez")),
        ("profile array.npy", ("array.npy is not a .npz", "numpy.savez")),
        ("profile empty.npz", ("empty.npz holds no arrays", "numpy.savez")),
        ("profile pickled.npz", ("pickled.npz", "pickle", "numpy.savez")),
        ("profile void.npz", ("void.npz: a", "float32")),
        ("profile integers.npz", ("a has dtype int32", "float32")),
        ("profile words.npz", ("a has dtype <U1", "float32")),
        ("profile note.npz", ("note.npz: 'note.txt' is not an array", "numpy.savez")),
        ("bench good.npz good.npz --repeats 1", ("--repeats 1 would leave some of the 2 files out",)),
        ("bench nameless.npz", ("nameless.npz: '' is not an array with a name", "numpy.savez")),
        ("profile uneven.npz", ("uneven.npz", "a (2, 3)", "b (3, 3)")),
        ("profile scalar.npz", ("scalar.npz", "a ()", "[n, ...]")),
        ("profile nobody.npz", ("nobody.npz", "a (0, 3)", "[n, ...]")),
        ("profile good.npz three.npz", ("three.npz holds gradients of 3 workers, but good.npz of 4",)),
        ("profile good.npz --unit column", ("unit='column'", "'row'")),
        ("profile good.npz --unit 7", ("unit=7", "divide the 8 columns")),
        ("profile good.npz --devices-per-host 0", ("--devices-per-host", "'0'", "at least 1")),
        ("profile good.npz --save nowhere/profile.json", ("nowhere/profile.json", "no folder 'nowhere'")),
        (f"profile good.npz --save {'x' * 300}.json", ("cannot be written: File name too long",)),
        ("profile good.npz --json .", ("'.' is a folder",)),
        ("profile good.npz --plot figure.gif", ("figure.gif", ".png")),
        ("bench missing.npz --json nowhere/a.json", ("nowhere/a.json", "no folder 'nowhere'")),
        (  # the first process writes the results
            "bench missing.npz --json nowhere/a.json --coordinator a:7 --num-processes 2 --process-id 1",
            ("missing.npz", "No such file"),
        ),
        ("plan missing.json", ("missing.json", "No such file", "Check")),
        ("plan good.npz", ("good.npz holds gradients", "zen-jax profile good.npz")),
        ("plan deep.json", ("deep.json is not a zen_jax profile", "again")),
        ("plan cut.json", ("cut.json is not a zen_jax profile", "again")),
        ("plan plan.json", ("plan.json is not a zen_jax profile but a plan", "again")),
        ("plan newer.json", ("version 99", "again")),
        ("plan unmeasured.json", ("unmeasured.json holds no usable profile", "again")),
        ("plan negative.json", ("negative.json holds no usable profile", "push=-1", "at least 0", "again")),
        ("plan profile.json --save ./profile.json", ("profile.json is also an input", "another file")),
        (
            "estimate profile.json --cluster links.json --json links.json",
            ("links.json is also an input", "another file"),
        ),
        ("profile good.npz three.npz --json three.npz", ("three.npz is also an input", "another file")),
        ("bench good.npz --save-cluster good.npz", ("good.npz is also an input", "another file")),
        ("bench good.npz --json out.json --save-cluster out.json", ("out.json is already an output", "another file")),
        ("plan profile.json --hosts 3", ("4 workers", "3 hosts")),
        ("plan profile.json --hosts 0", ("--hosts", "'0'", "at least 1")),
        ("plan profile.json --gbps fast", ("--gbps", "'fast'", "from 1e-09 to 1e+09")),
        ("plan profile.json --gbps inf", ("--gbps", "'inf'", "from 1e-09 to 1e+09")),
        ("plan profile.json --latency-us -1", ("--latency-us", "'-1'", "from 0 to 1e+12")),
        ("bench --gbps 1 --latency-us 1e308", ("--latency-us", "'1e308'", "from 0 to 1e+12")),
        ("plan profile.json --schemes zeno", ("--schemes", "'zeno'", "zen")),
        ("plan profile.json --schemes zen", ("no dense scheme", "Add")),
        ("estimate profile.json --intra-gbps 0", ("--intra-gbps", "'0'")),
        ("simulate profile.json --max-workers 1", ("--max-workers", "'1'", "at least 2")),
        ("simulate profile.json --max-workers 65536", ("--max-workers 65536", "at most 65535")),
        ("simulate alone.json", ("of 1 worker", "Profile at least two workers")),
        ("simulate profile.json --devices-per-host 4 --max-workers 3", ("--max-workers 3", "Allow more")),
        ("bench three.npz --workers 2", ("3 workers", "there are 2")),
        ("bench one.npz", ("only one worker", "at least two")),
        ("bench --workers 4096", ("4096 workers", "cpu has 8", "JAX_PLATFORMS=cpu")),
        ("bench --workers 2 --rows 1 --columns 1", ("--rows 1 and --columns 1", "workers, 2", "larger")),
        ("bench --density 2", ("--density", "'2'", "up to 1")),
        ("bench step.npz --columns 8", ("--columns is for made-up gradients",)),
        ("bench --gbps 1", ("--latency-us", "go together")),
        ("bench --process-id 0", ("--coordinator", "go together")),
        (f"{PLACE} 4", ("--process-id 4", "--num-processes 4", "from 0")),
        (f"{PLACE} -1", ("--process-id",)),
        (f"{PLACE} 0 --workers 4", ("--workers", "--coordinator")),
        (f"{PLACE} 0 --interface eth99", ("'eth99'", "This host has")),
        ("bench --interface lo", ("--interface", "--coordinator")),
        ("bench --coordinator host --num-processes 2 --process-id 0", ("'host'", "HOST:PORT")),
        ("bench --launch-on a,-b", ("--launch-on", "'a,-b'", "host1,host2")),
        ("bench --launch-on 'a, b'", ("--launch-on", "'a, b'", "host1,host2")),
        ("bench --launch-on a,b --workers 2", ("--workers", "--launch-on")),
        ("bench --launch-on a,b --process-id 0", ("--launch-on", "Leave out", "--process-id")),
        ("bench --launch-on localhost,b", ("localhost", "Give --coordinator HOST:PORT")),
        ("bench --launch-on a,b --coordinator a", ("'a'", "HOST:PORT")),
    ],
)
def test_bad_input(zen_jax, line, fragments):
    """Exit code 2; the last line says what happened and what to do, and nothing looks like a result."""
    code, printed, said = zen_jax(*shlex.split(line))
    assert (code, printed) == (BAD_INPUT, "")
    *progress, complaint = said.splitlines()
    assert complaint.startswith("zen-jax")
    assert len(progress) <= 3  # the files read, and what is being measured
    assert "Traceback" not in said
    for fragment in fragments:
        assert fragment in complaint


def test_figures_need_matplotlib(zen_jax, monkeypatch):
    monkeypatch.setattr(output, "find_spec", lambda name: None)
    code, _, said = zen_jax("estimate", "profile.json", "--plot", "figure.png")
    assert code == BAD_INPUT
    assert "pip install matplotlib" in said


def test_failure_is_no_bad_input(zen_jax, monkeypatch):
    def fail(*_):
        raise RuntimeError("the network\nis down")

    monkeypatch.setattr(zen, "estimate", fail)
    assert zen_jax("estimate", "profile.json") == (FAILED, "", "zen-jax estimate: the network is down\n")


def test_a_file_larger_than_the_memory_is_no_bad_input(zen_jax, monkeypatch):
    def load(*_):
        raise MemoryError("Unable to allocate 40. GiB")

    monkeypatch.setattr(np, "load", load)
    assert zen_jax("profile", "good.npz") == (FAILED, "", "zen-jax profile: Unable to allocate 40. GiB\n")


def test_a_full_disk_is_no_bad_input(zen_jax, monkeypatch):
    def fill(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(output, "show", fill)
    assert zen_jax("estimate", "profile.json")[0] == FAILED


def test_a_full_disk_hides_no_result(zen_jax, monkeypatch):
    def fill(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    _, shown, _ = zen_jax("estimate", "profile.json")
    monkeypatch.setattr(Path, "write_text", fill)
    reason = "zen-jax estimate: estimate.json: No space left on device. Free space, or give another file."
    assert zen_jax("estimate", "profile.json", "--json", "estimate.json") == (FAILED, shown, f"{reason}\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_for_the_cluster(zen_jax):
    code, _, said = zen_jax("bench", "good.npz", "--schemes", "dense", *LINKS, "--save-cluster", "/dev/full")
    assert code == FAILED
    assert "/dev/full: No space left on device. Free space" in said


def test_a_platform_that_jax_lacks(zen_jax, monkeypatch):
    def devices():
        raise AssertionError

    monkeypatch.setattr(jax, "devices", devices)
    monkeypatch.setattr(type(jax.config), "jax_platforms", "cuda")
    code, printed, said = zen_jax("info")
    assert (code, printed) == (FAILED, "")
    assert "no devices of JAX_PLATFORMS=cuda" in said


def test_names_that_the_terminal_cannot_show(folder, monkeypatch):
    zen.profile({"größe": gradient()["embedding"]}).save(folder / "german.json")
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii"))
    monkeypatch.setattr(sys, "argv", ["zen-jax", "plan", str(folder / "german.json")])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert script() == DONE
    assert rb"gr\xf6\xdfe" in written.getvalue()
