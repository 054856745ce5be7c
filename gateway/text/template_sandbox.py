"""Jinja2 for untrusted templates that come with a checkpoint.

Jinja's sandbox keeps a template away from files, imports and Python internals. It does not stop one
from running for ever or filling the memory, so repetition and growth are counted here:

    each pass of a loop, each call, each filter   one step; steps and CPU time are bounded
    outputs, literals, arguments, products        weighed before they are made; size is bounded

One environment renders one template at a time, on one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

from jinja2 import Environment, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from baton.gateway.text.template_limits import (
    MAX_CPU_S,
    MAX_SIZE,
    MAX_STEPS,
    TEXT_FILTERS,
    LimitExceeded,
    check_arguments,
    check_method,
    check_operation,
    check_size,
    check_string_method,
    check_sum,
    weigh,
)

SCOPES = ("_loop_vars", "_block_vars")


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, loopcontrols],
            finalize=self._count_output,
        )
        self._num_steps = 0
        self._num_output = 0
        self._cpu_limit_s = 0.0
        del self.globals["lipsum"]
        self.filters = {name: self._bounded(name, f) for name, f in self.filters.items()}
        self.filters["_counted"] = self._counted
        self.filters["_joined"] = self._joined
        self.filters["_weighed"] = _weighed

    def start(self) -> None:
        """Reset the counters for one rendering."""
        self._num_steps = 0
        self._num_output = 0
        self._cpu_limit_s = time.thread_time() + MAX_CPU_S

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        self.filters[name] = self._bounded(name, function)

    def _generate(
        self,
        source: nodes.Template,
        name: str | None,
        filename: str | None,
        defer_init: bool = False,
    ) -> str:
        _Counting().visit(source)
        source.set_environment(self)
        return super()._generate(source, name, filename, defer_init)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        self._step()
        args = tuple(map(self._settled, args))
        values = (*args, *kwargs.values())
        weigh(values)
        owner = getattr(obj, "__self__", None)
        check_method(getattr(obj, "__name__", ""))
        if isinstance(owner, str):
            check_string_method(owner, obj.__name__, values)
        if isinstance(obj, Macro):  # arguments that Jinja adds to calls within loops and blocks
            kwargs = {name: value for name, value in kwargs.items() if name not in SCOPES}
            return obj(*args, **kwargs)
        return _weighed(super().call(context, obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """The limited `str.format`; Jinja wraps the original."""
        inner = super().wrap_str_format(value)
        if inner is None:
            return None

        def bounded(*args: Any, **kwargs: Any) -> str:
            check_string_method(value.__self__, value.__name__, (*args, *kwargs.values()))
            return inner(*args, **kwargs)

        return bounded

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self._step()
        check_operation(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def _step(self) -> None:
        self._num_steps += 1
        if self._num_steps > MAX_STEPS or time.thread_time() > self._cpu_limit_s:
            raise LimitExceeded("the chat template does not come to an end")

    def _count_output(self, value: Any) -> Any:
        self._num_output += weigh(value)
        if self._num_output > MAX_SIZE:
            raise LimitExceeded("the chat template's output is too long")
        return value

    def _counted(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self._step()
            yield value

    def _joined(self, values: list[Any]) -> str:
        weigh(values)
        return "".join(map(str, values))

    def _settled(self, value: Any) -> Any:
        """A lazy sequence as a list, because one cannot be weighed before it is spent."""
        if not isinstance(value, Iterator | range):
            return value
        items: list[Any] = []
        size = 0
        for item in self._counted(value):
            size += weigh(item)
            check_size(size)
            items.append(item)
        return items

    def _bounded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` as a filter that counts as a step and cannot make huge values."""

        @wraps(function)  # keep Jinja's markers, such as pass_environment
        def bounded(*args: Any, **kwargs: Any) -> Any:
            self._step()
            args = tuple(map(self._settled, args))
            own = [a for a in args if not isinstance(a, Environment | Context | nodes.EvalContext)]
            values = (*own[1:], *kwargs.values())
            weigh((own, values))
            check_arguments(values)
            if own and (isinstance(own[0], str) or name in TEXT_FILTERS):
                check_string_method(str(own[0]), name, values)
            elif own and name == "join":
                separator = "".join(value for value in values if isinstance(value, str))
                check_string_method(separator, name, own)
            elif own and name == "sum":
                check_sum(own[0], values)
            return _weighed(function(*args, **kwargs))

        return bounded


class _GenerationTag(Extension):
    """transformers' `{% generation %}`, which marks text for training; ignored."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's way to declare)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Counting(NodeTransformer):
    """Compiles loops to counted loops, and value-building expressions to size-checked ones."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        assert isinstance(node.iter, nodes.Expr)
        node.iter = _filter(node.iter, "_counted")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), "_joined")

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return _filter(node, "_weighed")

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return _filter(node, "_weighed")

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _filter(node, "_weighed") if node.ctx == "load" else node


def _filter(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _weighed(value: Any) -> Any:
    weigh(value)
    return value
