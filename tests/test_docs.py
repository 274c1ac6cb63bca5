"""Every python block of the documentation runs, page by page, with the names that earlier blocks define, and prints
what the page says; the commands that pages and docstrings show parse."""

import argparse
import ast
import contextlib
import re
import shlex
from importlib import import_module
from pathlib import Path

import harness
import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)

PROGRAM = r"(-m (?:benchmarks|examples)\.[a-z0-9_.]+|scripts/\w+\.py)"
# On lines of its own, up to a comment, or inside a sentence.
COMMANDS = [
    re.compile(rf"^ *(?:\w+=\S+ )*python {PROGRAM}((?:\\\n|[^#\n])*)", re.MULTILINE),
    re.compile(rf"`(?:python )?{PROGRAM}( [^`]+)`"),
]


@pytest.mark.promoting
@pytest.mark.parametrize("page", [p for p in PAGES if BLOCK.search(p.read_text())], ids=lambda p: p.name)
def test_blocks_run(page, capsys):
    text = page.read_text()
    names = {}
    # README says how many bytes are sent.
    with contextlib.nullcontext() if page.name == "README.md" else harness.coarse_ladder():
        for match in BLOCK.finditer(text):
            line = text[: match.start()].count("\n") + 1
            exec(compile("\n" * line + match[1], str(page), "exec"), names)
            printed, after = capsys.readouterr().out, text[match.end() :].partition("\n```")[0]
            said = re.findall(r"\bit\s+prints\s+`(.*?)`", after)
            assert all(each in printed for each in said) and (said or page.name != "README.md")


def commands():
    """The commands of all pages and docstrings, each as one line."""
    texts = [page.read_text() for page in [*PAGES, *(ROOT / "examples").glob("*/README.md")]]
    for folder in ("benchmarks", "examples", "scripts"):
        texts += [ast.get_docstring(ast.parse(file.read_text())) or "" for file in (ROOT / folder).rglob("*.py")]
    found = {"".join(match.groups()) for text in texts for command in COMMANDS for match in command.finditer(text)}
    return sorted({" ".join(command.replace("\\\n", "").split()) for command in found})


@pytest.mark.parametrize("command", commands(), ids=str)
def test_commands_parse(command, monkeypatch):
    """Up to where the program would start, having checked its arguments."""
    for package in ("flax", "matplotlib", "orbax.checkpoint", "tqdm"):
        pytest.importorskip(package)
    program, *words = shlex.split(command.removeprefix("-m "))
    module = import_module(program.removesuffix(".py").replace("/", "."))
    if hasattr(module, "__path__"):
        module = import_module(f"{module.__name__}.__main__")
    monkeypatch.setattr("sys.argv", [program, *words])
    if hasattr(module, "parse"):
        module.parse()
        return

    class Parsed(Exception):
        pass

    def parse_and_stop(parser, given=None):
        parse_args(parser, given)
        raise Parsed

    parse_args = argparse.ArgumentParser.parse_args
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
    with pytest.raises(Parsed):
        if hasattr(module, "EXAMPLE"):
            import_module("examples.common.app").main(module.EXAMPLE, words)
        else:
            module.main()
