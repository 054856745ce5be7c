"""Fields of every request for generated text, in all APIs."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from msgspec import Meta

from baton.core.errors import InvalidRequest
from baton.gateway.grammars.structured_output import OutputRule, StructuredOutputs, rule_of_kinds
from baton.gateway.requests.cache_control import CacheControl
from baton.gateway.requests.options import CommonOptions

GUIDED = ("json", "regex", "choice", "grammar")


class GenerationBody(CommonOptions, kw_only=True, forbid_unknown_fields=True):
    model: str | None = None
    """The one that is served, which is also the default, or one of its LoRA adapters."""
    stream: bool | None = None
    """Answer in server-sent events, as tokens come."""

    structured_outputs: StructuredOutputs | None = None
    """vLLM's: a schema, an expression, choices or a grammar that the output must fit."""
    guided_choice: list[str] | None = None
    """vLLM's older `structured_outputs.choice`."""
    guided_grammar: str | None = None
    """vLLM's older `structured_outputs.grammar`."""
    guided_json: dict[str, Any] | str | bool | None = None
    """vLLM's older `structured_outputs.json`."""
    guided_regex: str | None = None
    """vLLM's older `structured_outputs.regex`."""

    add_special_tokens: bool | None = None
    """vLLM's: of the tokenizer, such as `<s>`. True by default for completions; chat templates
    write them out."""
    truncate_prompt_tokens: Annotated[
        int | None,
        Meta(
            description="vLLM's: keep the last so many tokens of the prompt; -1: those that fit.",
            extra_json_schema={"minimum": -1},
        ),
    ] = None
    skip_special_tokens: bool | None = None
    """vLLM's: false shows special tokens in the text. True by default."""
    include_stop_str_in_output: bool | None = None
    """vLLM's: the text holds the stop string that ended it. False by default."""
    return_token_ids: bool | None = None
    """vLLM's: return the ids of prompt and output, too."""
    request_id: str | None = None
    """vLLM's: the id from which the answer's id is made. The header `x-request-id` is returned
    unchanged."""

    cache_salt: str | None = None
    """vLLM's: cached KV is shared only among requests of the same salt."""
    cache_control: CacheControl | None = None
    """Anthropic's: keep the prompt in the prefix cache; of a conversation, up to its last message.
    """
    prompt_cache_key: str | None = None
    """The key of a conversation, whose requests are placed where their prefix is cached. The header
    `x-session-id` overrides it."""
    receipt: bool | None = None
    """Baton's: add a `baton` object to the answer: where the request ran and what it cost."""
    resumable: bool | None = None
    """Baton's: keep the stream for a while when the connection breaks; its events carry ids."""

    def output_rule_with(self, form: OutputRule | None, form_field: str) -> OutputRule | None:
        """The rule for the output; `form` is the rule by the API's own field. Raises
        InvalidRequest, also if two fields set a rule."""
        guided = [kind for kind in GUIDED if getattr(self, f"guided_{kind}") is not None]
        given = [f"guided_{kind}" for kind in guided]
        if self.structured_outputs is not None:
            given.append("structured_outputs")
        if form is not None:
            given.append(form_field)
        if len(given) > 1:
            message = f"{given[0]} and {given[1]} exclude each other; leave one out"
            raise InvalidRequest(message, field=given[0])
        if self.structured_outputs is not None:
            return rule_of_kinds(self.structured_outputs, field="structured_outputs")
        return self._guided(guided[0]) if guided else form

    def _guided(self, kind: str) -> OutputRule:
        field = f"guided_{kind}"
        wanted = StructuredOutputs(**{kind: getattr(self, field)})
        try:
            return replace(rule_of_kinds(wanted, field="guided"), field=field)
        except InvalidRequest as error:
            raise InvalidRequest(error.message.replace("guided.", "guided_"), field=field) from None
