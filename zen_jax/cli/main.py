"""`zen-jax`: parses options, runs a subcommand, shows its result, and turns errors into one line and an exit code."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

import jax

from zen_jax import __version__
from zen_jax.cli import bench, estimate, info, output, plan, profile, simulate

COMMANDS = {
    "info": info,
    "profile": profile,
    "plan": plan,
    "estimate": estimate,
    "simulate": simulate,
    "bench": bench,
}
DONE, FAILED, BAD_INPUT = 0, 1, 2


def script() -> int:
    """The entry point: runs `main`, and Ctrl-C ends the process at once, as shells expect (exit code 130)."""
    # Python's own handler would wait for C++ to return, and its exit for other processes of jax.distributed.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.stderr is None:  # it is closed, and print would take standard output instead
        sys.stderr = open(os.devnull, "w")
    if sys.stdout is not None:
        sys.stdout.reconfigure(errors="backslashreplace")  # leaves may have names that the terminal cannot show
    return main()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `zen-jax` with the given arguments, by default those of this process, and returns the exit code."""
    top = parser()
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        options = top.parse_args(arguments)
    except SystemExit as stop:  # argparse has said why
        return int(stop.code or DONE)
    if options.command is None:
        top.print_help()
        return DONE
    options.arguments = arguments  # for the same command on other hosts
    try:
        output.check_files(options)
        output.show(COMMANDS[options.command].run(options), options)
    except ValueError as error:
        return _complain(options.command, error, BAD_INPUT)
    except OSError as error:
        return _complain(options.command, error, BAD_INPUT if error.filename else FAILED)
    except (RuntimeError, MemoryError) as error:
        return _complain(options.command, error, FAILED)
    except AssertionError:  # all that JAX says of a platform whose plugin is not installed
        platforms = jax.config.jax_platforms
        if not platforms:
            raise
        missing = f"JAX has no devices of JAX_PLATFORMS={platforms}. Unset it, or install that platform's jax."
        return _complain(options.command, RuntimeError(missing), FAILED)
    return DONE


def _complain(command: str, error: Exception, code: int) -> int:
    said = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.filename:
        said = f"{error.filename}: {error.strerror}. Check the path."
    output.say(f"zen-jax {command}: {' '.join(said.split())}")
    return code


class _Parser(argparse.ArgumentParser):
    """Reports errors in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: {message}. See {self.prog} --help.\n")


def parser() -> argparse.ArgumentParser:
    """The parser of `zen-jax`; a subcommand's help is its module's docstring and EXAMPLES."""
    top = _Parser(
        prog="zen-jax",
        description="Measures how sparse gradients are, and plans, estimates and times their synchronisation.",
        epilog="zen-jax COMMAND --help shows a command's options, with examples.",
    )
    top.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, module in COMMANDS.items():
        summary = module.__doc__.split("\n")[0]
        command = commands.add_parser(
            name,
            help=summary,
            description=module.__doc__,
            epilog=f"examples:\n{module.EXAMPLES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_options(command)
    return top
