"""Sampling options from protobuf, copied by name."""

from __future__ import annotations

from typing import Any

from baton.gateway.grammars.structured_output import (
    OutputRule,
    StructuredOutputs,
    rule_of_kinds,
)
from baton.gateway.requests.options import SamplingOptions
from baton.proto import inference_pb2 as pb

FIELD_BY_OPTION = {name: f"sampling.{name}" for name in SamplingOptions.__struct_fields__}
STRUCTURED_OUTPUT = "structured_output"
"""The one field that is not a sampling option but a grammar."""


def sampling_options(sampling: pb.SamplingOptions) -> SamplingOptions:
    """The options that are set; empty lists count as not set."""
    given: dict[str, Any] = {}
    for field, value in sampling.ListFields():
        if field.name == STRUCTURED_OUTPUT:
            continue
        if field.message_type is not None:
            given[field.name] = dict(value)  # a map: nothing else here is a message
        else:
            given[field.name] = list(value) if field.is_repeated else value
    return SamplingOptions(**given)


def output_rule(sampling: pb.SamplingOptions) -> OutputRule | None:
    """Raises InvalidRequest."""
    if not sampling.HasField("structured_output"):
        return None
    wanted = sampling.structured_output
    kind = wanted.WhichOneof("kind")
    given: dict[str, Any] = {}
    if kind == "json_schema":
        given["json"] = wanted.json_schema
    elif kind == "choice":
        given["choice"] = list(wanted.choice.choices)
    elif kind is not None:
        given[kind] = getattr(wanted, kind)
    field = f"sampling.{STRUCTURED_OUTPUT}"
    return rule_of_kinds(StructuredOutputs(**given), field=field, schema_name="json_schema")
