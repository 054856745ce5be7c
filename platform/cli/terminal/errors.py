"""Prints errors in one line on standard error, with the remedy.

exit 2     usage: the command, the configuration or the model folder must be changed
exit 1     a failure at run time
exit 130   Ctrl-C
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup
from typer.exceptions import TyperException

from baton.core.errors import ITEM, BatonError, CheckpointError, InvalidConfig, InvalidRequest

INTERRUPTED = 130
KERNELS_LOG = "baton.kernels.cpu.library"
THE_USERS_OWN = (InvalidConfig, CheckpointError, InvalidRequest)


class OneLineErrors(TyperGroup):
    """Prints usage errors in one line, where Typer would draw a box."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        def run() -> Any:
            return super(OneLineErrors, self).main(
                args, prog_name, complete_var, False, windows_expand_args, **extra
            )

        if not standalone_mode:
            return run()
        try:
            sys.exit(run() or 0)
        except TyperException as error:
            context: Any = getattr(error, "ctx", None)  # usage errors have one
            name = "baton" if context is None else context.command_path
            if message := error.format_message():  # empty if the help text was shown instead
                complain(name, f"{message.rstrip('.')}; see `{name} --help`")
            sys.exit(error.exit_code)
        except typer.Abort:
            sys.exit(INTERRUPTED)


def complain(command: str, text: str) -> None:
    """Print an error on one line, or one for each of several mistakes."""
    lines = ITEM.join(" ".join(item.split()) for item in text.split(ITEM))
    console = Console(stderr=True, highlight=False)
    console.print(Text.assemble((f"{command}: ", "red"), lines), soft_wrap=True)


@contextmanager
def warnings_silenced() -> Iterator[None]:
    """Silence the services' log in commands with their own output, but for what the kernels say:
    that they are compiled, which takes a minute, or that there are none."""
    levels = {"baton": logging.ERROR}
    if logging.getLogger(KERNELS_LOG).level == logging.NOTSET:  # nobody has asked for more
        levels[KERNELS_LOG] = logging.WARNING
    before = {name: logging.getLogger(name).level for name in levels}
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def status_of(error: BatonError) -> int:
    return 2 if isinstance(error, THE_USERS_OWN) else 1


@contextmanager
def errors_in_one_line(command: str) -> Iterator[None]:
    """Turn Baton's errors into one line and an exit status."""
    try:
        yield
    except BatonError as error:
        complain(command, str(error))
        raise typer.Exit(status_of(error)) from None
    except OSError as error:
        if isinstance(error, BrokenPipeError):  # the reader of our output is gone; typer handles it
            raise
        complain(command, str(error))
        raise typer.Exit(1) from None
