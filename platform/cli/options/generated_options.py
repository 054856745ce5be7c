"""Generates command-line options from existing types and docstrings.

command(model, values)  --with_options("values", [...])-->  what typer sees: model, --a, --b
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import typer

Command = Callable[..., None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedOption:
    parameter: str
    flag: str
    """Flag as `typer.Option` takes it: `--port`, or `--this/--no-this`."""
    hint: Any
    """A type with its limits, as msgspec understands it. Lists may be given item by item, and
    dicts of text as NAME=VALUE."""
    help: str
    panel: str
    """Heading under which `--help` lists it."""
    variable: str | None = None
    """An environment variable that stands for it."""

    @property
    def is_dict(self) -> bool:
        return typing.get_origin(self.hint) is dict


def with_options(
    into: str,
    options: Sequence[GeneratedOption],
    convert: Callable[[Mapping[str, Any]], Any] = dict,
) -> Callable[[Command], Command]:
    """Give a command `options` in the place of its parameter `into`.

    That gets `convert({parameter: value})` of the options that were given.
    """

    def decorate(command: Command) -> Command:
        def run(**values: Any) -> None:
            given = {option.parameter: values.pop(option.parameter) for option in options}
            given = {name: value for name, value in given.items() if value not in (None, [])}
            for option in options:
                if option.is_dict and option.parameter in given:
                    given[option.parameter] = _named(option.flag, given[option.parameter])
            command(**values, **{into: convert(given)})

        own = inspect.signature(command, eval_str=True).parameters.values()
        parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in own if p.name != into]
        parameters += map(_parameter, options)
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        return run

    return decorate


def _parameter(option: GeneratedOption) -> inspect.Parameter:
    base, meta = _base_type(option.hint)
    has_limits = base in (int, float)
    info = typer.Option(
        option.flag,
        help=option.help,
        rich_help_panel=option.panel,
        envvar=option.variable,
        metavar="NAME=VALUE" if option.is_dict else None,
        min=meta.ge if has_limits else None,
        max=meta.le if has_limits else None,
    )
    return inspect.Parameter(
        option.parameter,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[base | None, info],
    )


def _base_type(hint: Any) -> tuple[Any, msgspec.Meta]:
    """What typer is to parse, and the limits."""
    meta = msgspec.Meta()
    if typing.get_origin(hint) is Annotated:
        hint, meta = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        hint = [kind for kind in typing.get_args(hint) if kind is not types.NoneType][-1]
    if typing.get_origin(hint) in (frozenset, tuple, list):
        return list[typing.get_args(hint)[0]], meta  # type: ignore[misc]
    if typing.get_origin(hint) is dict:
        return list[str], meta
    return hint, meta


def _named(flag: str, given: Sequence[str]) -> dict[str, str]:
    """Values by name. Raises typer.BadParameter."""
    named: dict[str, str] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals:
            raise typer.BadParameter(f"{each!r} is not NAME=VALUE", param_hint=flag)
        if name in named:
            raise typer.BadParameter(f"{name!r} is given twice", param_hint=flag)
        named[name] = value
    return named
