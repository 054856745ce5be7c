"""Detects a model's call format from its chat template."""

from __future__ import annotations

from collections.abc import Callable, Collection

from baton.gateway.chat.functions import Function
from baton.gateway.output import formats, gemma_calls, harmony, python_calls, xml_calls
from baton.gateway.output.formats import HERMES_BEGIN, CallFormat
from baton.gateway.output.typed_arguments import Schemas

GENERIC = "generic"
"""Unknown format: see generic_tools.py."""
MARKERS = (
    *formats.MARKERS,
    *harmony.MARKERS,
    *xml_calls.MARKERS,
    *python_calls.MARKERS,
    *gemma_calls.MARKERS,
)
"""Shown to the parsers even where they are special tokens."""
SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("harmony", (harmony.CHANNEL,)),
    ("qwen3_coder", (HERMES_BEGIN, xml_calls.FUNCTION, xml_calls.PARAMETER)),
    ("glm", (HERMES_BEGIN, xml_calls.KEY)),
    (GENERIC, (xml_calls.FUNCTION,)),  # an unknown format, whatever marks it has
    ("hermes", (HERMES_BEGIN,)),
    ("deepseek", (formats.CALLS_BEGIN,)),
    ("deepseek_v32", (xml_calls.DSML,)),
    ("mistral", (formats.MISTRAL_CALLS,)),
    ("kimi", (formats.KIMI_CALLS,)),
    ("phi", (formats.PHI_CALLS,)),
    ("phi", (formats.PHI_LIST,)),
    ("phi", ("<|tool|>",)),
    *(("gemma", (mark,)) for mark in gemma_calls.CALL_BEGINS),
    ("llama4", (python_calls.PYTHON_BEGIN,)),
    ("llama4", ("[func_name1(",)),
    ("llama3", (formats.LLAMA3_TAG,)),
    ("llama3", ('"parameters"', "ipython")),
)
"""Texts by which a template shows its format: all of them must occur; the first format that fits
counts."""


FORMATS: dict[str, CallFormat] = {
    GENERIC: formats.hermes,
    "hermes": formats.hermes,
    "deepseek": formats.deepseek,
    "deepseek_v32": xml_calls.deepseek_v32,
    "mistral": formats.mistral,
    "kimi": formats.kimi,
    "phi": formats.phi,
    "harmony": harmony.messages,
}
TYPED_FORMATS: dict[str, Callable[[Schemas], CallFormat]] = {
    "llama3": formats.llama3,
    "llama4": python_calls.llama4,
    "qwen3_coder": xml_calls.qwen3_coder,
    "glm": xml_calls.glm,
    "gemma": gemma_calls.gemma,
}
"""Call formats whose parsers need the tools' schemas."""


def format_name(parser: str, template: str) -> str:
    """`parser` is the setting gateway.tool_parser. `GENERIC` if no format is known."""
    if parser != "auto":
        return parser
    found = (name for name, signs in SIGNS if all(sign in template for sign in signs))
    return next(found, GENERIC)


def call_format(name: str, tools: Collection[Function]) -> CallFormat | None:
    """None if `name` is none."""
    if name in FORMATS:
        return FORMATS[name]
    typed = TYPED_FORMATS.get(name)
    return None if typed is None else typed({one.name: one.parameters for one in tools})
