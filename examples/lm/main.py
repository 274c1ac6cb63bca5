"""Trains a word-level LSTM language model with ZEN and with dense synchronisation, and compares the two."""

import argparse
import dataclasses
import sys
from pathlib import Path

if not __package__:  # run as a file: the repository root is what modules are imported from
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from examples.lm.memory import keep_freed_memory

if __name__ == "__main__":
    keep_freed_memory()

import jax

import zen_jax as zen
from examples.lm import launch, progress, report, text
from examples.lm.config import Config
from examples.lm.train import Run, train
from examples.lm.workers import Devices, Emulated, find_workers

_EXAMPLES = """examples:
  python -m examples.lm.main                          8 emulated workers, the text that Python brings along
  python -m examples.lm.main --data path/to/books     any text: *.txt, *.md, *.rst, *.py, each also as .gz
  python -m examples.lm.main --processes 4            4 processes on this machine, one worker each
  python -m examples.lm.main --coordinator HOST:PORT --num-processes 16 --process-id 3
                                                      one of 16 processes under a launcher of yours
"""


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0, or 2 for options and text that cannot be used."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        if options.processes:
            if options.workers not in (None, options.processes):
                raise ValueError(f"--workers {options.workers}: --processes {options.processes} has one worker each")
            return launch.start(__file__, [*arguments, "--processes", "0"], options.processes)
        config, corpus, workers = _prepare(options)
    except (ValueError, OSError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    _compare(config, corpus, workers)
    return 0


def _prepare(options: argparse.Namespace) -> tuple[Config, text.Corpus, Emulated | Devices]:
    """Everything that can be wrong with options and text is found here, before anything is traced."""
    rank = launch.rank_from(options.coordinator, options.num_processes, options.process_id)
    options.out.mkdir(parents=True, exist_ok=True)
    corpus = text.load_corpus(options.data, options.vocab)
    launch.join(rank)
    workers = find_workers(options.workers, Config.workers)
    names = {field.name for field in dataclasses.fields(Config)}
    chosen = {name: value for name, value in vars(options).items() if name in names}
    config = Config(**chosen | {"workers": workers.count})
    text.streams(corpus.train, workers.count * config.batch, config.unroll)
    return config, corpus, workers


def _compare(config: Config, corpus: text.Corpus, workers: Emulated | Devices) -> None:
    speaks = jax.process_index() == 0
    if speaks:
        tables = 2 * len(corpus.words) * config.dim
        print(f"text     {corpus.source}: {len(corpus.train):,} words, {len(corpus.words):,} different")
        print(f"model    {tables / 1e6:.2f}M parameters in two embedding tables, LSTM of {config.hidden}")
        print(f"workers  {workers}, {config.tokens_per_step:,} words a step", flush=True)
    runs = [Run(scheme) for scheme in config.sync]
    for run in runs:
        steps = train(config, corpus, workers, run)
        progress.watch(run.scheme, steps, config.steps, config.tokens_per_step, quiet=not speaks)
    if speaks:
        rows = report.summarise(runs, config.tokens_per_step)
        report.write(config.out, config, corpus.source, runs, rows)
        print(f"\n{report.table(rows)}\n\ncurves.png, summary.json and metrics.jsonl are in {config.out}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="examples.lm.main",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--data", type=Path, metavar="PATH", help="file or directory of text (default: Python's standard library)")
    add(
        "--sync",
        type=_schemes,
        default=Config.sync,
        metavar="NAMES",
        help=f"comma-separated (default: {','.join(Config.sync)})",
    )
    add("--workers", type=_at_least(1), metavar="N", help=f"emulated workers (default: {Config.workers})")
    for name, least, meaning in (
        ("steps", 1, "training steps"),
        ("batch", 1, "text streams per worker"),
        ("unroll", 1, "words per stream and step"),
        ("vocab", 4, "words in the vocabulary, at most"),
        ("dim", 1, "width of the embeddings"),
        ("hidden", 1, "width of the LSTM"),
        ("negatives", 1, "words sampled for the softmax"),
        ("seed", 0, "seed of the weights and the samples"),
    ):
        default = getattr(Config, name)
        add(f"--{name}", type=_at_least(least), default=default, metavar="N", help=f"{meaning} (default: {default})")
    add("--learning-rate", type=_positive, default=Config.learning_rate, metavar="X", help="(default: %(default)s)")
    add("--out", type=Path, default=Config.out, metavar="DIR", help="where results go (default: %(default)s)")
    several = parser.add_argument_group("several processes")
    several.add_argument("--processes", type=_at_least(0), default=0, metavar="N", help="start N on this machine")
    several.add_argument("--coordinator", metavar="HOST:PORT", help="or JAX_COORDINATOR_ADDRESS")
    several.add_argument("--num-processes", type=_at_least(1), metavar="N", help="or NUM_PROCESSES")
    several.add_argument("--process-id", type=_at_least(0), metavar="I", help="or PROCESS_ID")
    return parser


def _at_least(least: int):
    def parse(word: str) -> int:
        if not word.isdecimal() or int(word) < least:
            raise argparse.ArgumentTypeError(f"{word!r} must be an integer of at least {least}")
        return int(word)

    return parse


def _positive(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{word!r} must be a positive number")
    return value


def _schemes(word: str) -> tuple[str, ...]:
    names = tuple(word.split(","))
    for name in names:
        if name not in zen.schemes.names():
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(zen.schemes.names())}")
    if len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"{word!r} names a scheme twice")
    return names


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
