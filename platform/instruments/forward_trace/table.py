"""A trace on a terminal: its tokens, a line per stage, then each layer's attention.

Tokens are inserted as `Text`, since Rich would read `[/INST]` as markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from baton.core.wording import count_of
from baton.platform.instruments.forward_trace.trace import (
    ForwardTrace,
    Guess,
    Stage,
    TracedToken,
)

NUM_LOOKED_AT = 2
NUM_GUESSES = 2
"""The guesses shown of a layer."""
SHADES = " ░▒▓█"
MAX_SHADES = 40
MIN_WIDTH = 13
"""The width of the names of stages: "feed-forward" on one line."""


def show(console: Console, trace: ForwardTrace, *, every_layer: bool) -> None:
    """Show a trace, with the stages of equal layers only once unless `every_layer`."""
    about = (
        f"{trace.model}: {trace.architecture}, {count_of(len(trace.layers), 'layer')}, "
        f"{trace.dtype} on {trace.device}; {count_of(len(trace.tokens), 'token')}"
    )
    console.print(Text(about))
    console.print(_tokens(trace.tokens))
    console.print(_stages(trace, every_layer=every_layer))
    console.print(_layers(trace))
    console.print(_guesses("next", trace.guesses))
    if trace.guesses_after:
        console.print(_guesses("after it", trace.guesses_after))


def spelled(token: TracedToken) -> str:
    """The token's text, with visible spaces and line ends."""
    text = token.text.replace(" ", "·").replace("\n", "⏎").replace("\t", "⇥")
    return text if text and text.isprintable() else f"<{token.token}>"


def _tokens(tokens: Sequence[TracedToken]) -> Text:
    text = Text()
    for index, token in enumerate(tokens):
        text.append(spelled(token), style="reverse" if index % 2 else "")
    return text


def _stages(trace: ForwardTrace, *, every_layer: bool) -> Table:
    table = Table(title="stages", box=SIMPLE, pad_edge=False, title_justify="left")
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("stage", min_width=MIN_WIDTH)
    table.add_column("shape", no_wrap=True)
    for name in ("MFLOP", "MB", "FLOP/B", "size"):
        table.add_column(name, justify="right", no_wrap=True)
    outside = trace.stages_of(None)
    for stage in outside:
        if stage.name not in _AFTER:
            table.add_row(*_cells(stage))
    for layers in _shown(trace, every_layer=every_layer):
        for stage in trace.stages_of(layers[0]):
            table.add_row(*_cells(stage))
        if layers[1:]:
            table.add_row("…", f"likewise in {len(layers) - 1} more; see --layers")
    for stage in outside:
        if stage.name in _AFTER:
            table.add_row(*_cells(stage))
    table.add_section()
    work = trace.work
    table.add_row(
        "", "the pass", "", _mega(work.flops), _mega(work.num_bytes), f"{work.intensity:,.1f}", ""
    )
    return table


_AFTER = ("last norm", "head")


def _shown(trace: ForwardTrace, *, every_layer: bool) -> Iterable[list[int]]:
    """Groups of layers with the same stages and shapes; the first of each is shown."""
    layers = range(len(trace.layers))
    if every_layer:
        return ([layer] for layer in layers)
    alike: dict[tuple[object, ...], list[int]] = {}
    for layer in layers:
        stages = trace.stages_of(layer)
        kind = tuple((stage.name, stage.shape_in, stage.shape_out) for stage in stages)
        alike.setdefault(kind, []).append(layer)
    return alike.values()


def _cells(stage: Stage) -> tuple[str | Text, ...]:
    shape = Text(_shape(stage.shape_in))
    if stage.is_reshaping:
        shape.append(" > ").append(_shape(stage.shape_out), style="bold")
    return (
        "" if stage.layer is None else str(stage.layer),
        stage.name,
        shape,
        _mega(stage.work.flops),
        _mega(stage.work.num_bytes),
        f"{stage.work.intensity:,.1f}",
        f"{stage.size:.3g}",
    )


def _layers(trace: ForwardTrace) -> Table:
    table = Table(
        title="layers: where the last token looks, and what it would say next",
        box=SIMPLE, pad_edge=False, title_justify="left",
    )  # fmt: skip
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("attention, first to last", no_wrap=True, overflow="crop")
    table.add_column("most on")
    if any(layer.experts for layer in trace.layers):
        table.add_column("experts of the last token", no_wrap=True)
    table.add_column("logit lens")
    for index, layer in enumerate(trace.layers):
        cells = [str(index), _shades(layer.mean_heat), _looked_at(trace, layer.mean_heat)]
        if any(one.experts for one in trace.layers):
            cells.append(_experts(layer.experts[-1] if layer.experts else ()))
        table.add_row(*map(Text, (*cells, _in_words(layer.guesses[:NUM_GUESSES]))))
    return table


def _shades(heat: Sequence[float]) -> str:
    """One character per token; for many tokens, one per run, of its maximum (`MAX_SHADES` runs)."""
    run = -(-len(heat) // MAX_SHADES)
    tops = [max(heat[start : start + run]) for start in range(0, len(heat), run)]
    most = max(tops) or 1.0
    return "".join(SHADES[round(top / most * (len(SHADES) - 1))] for top in tops)


def _looked_at(trace: ForwardTrace, heat: Sequence[float]) -> str:
    best = sorted(range(len(heat)), key=lambda place: -heat[place])[:NUM_LOOKED_AT]
    return " ".join(f"{spelled(trace.tokens[place])} {heat[place]:.0%}" for place in best)


def _experts(chosen: Sequence[tuple[int, float]]) -> str:
    return " ".join(f"{expert}:{share:.2f}" for expert, share in chosen)


def _guesses(place: str, guesses: Sequence[Guess]) -> Text:
    return Text(f"{place}: {_in_words(guesses)}")


def _in_words(guesses: Sequence[Guess]) -> str:
    return "  ".join(f"{spelled(guess.token)} {guess.probability:.0%}" for guess in guesses)


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _mega(number: float) -> str:
    return f"{number / 1e6:,.2f}" if number < 1e7 else f"{number / 1e6:,.0f}"
