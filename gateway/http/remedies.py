"""Remedies: what to use in place of a field that Baton does not have, or cannot honour.

    a field of another API                        this API's name for the same
    a field that only other servers have          what to use here
    a field declared only to be refused           what to use here; its type is `Refused`

A field in none of these tables, and not similar to a known name, is ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from baton.gateway.http.generation_body import GenerationBody
from baton.gateway.requests.unsupported import refuse_unsupported, refused_names


class FieldRemedy(NamedTuple):
    names: tuple[str, ...]
    """Baton's names for it, of which a body uses the first that it has. `a.b` is within `a`."""
    otherwise: str
    """The remedy where a body has none of them."""
    foreign: tuple[str, ...] = ()
    """Other servers' names for it."""


IN_CHATS = "use /v1/chat/completions"
NOTHING_RUNS = "nothing runs here but the model; describe what it offers as tools"
NO_BEAMS = "there is no beam search here"
TEXT_ONLY = "models here read and write text"

OF_GENERATION = (
    FieldRemedy(("input", "messages", "prompt"), "", ("inputs", "input_ids")),
    FieldRemedy(
        ("instructions", "system"),
        "begin messages with one of role system, or the prompt with this",
        ("system_prompt", "preamble"),
    ),
    FieldRemedy(
        ("max_output_tokens", "max_tokens", "max_completion_tokens"),
        "",
        ("max_new_tokens", "max_length", "max_tokens_to_sample", "n_predict", "num_predict"),
    ),
    FieldRemedy(("min_tokens",), "", ("min_new_tokens", "min_length")),
    FieldRemedy(("stop_sequences", "stop"), "", ("stop_words",)),
    FieldRemedy(("include_stop_str_in_output",), "", ("no_stop_trim",)),
    FieldRemedy(
        ("text.format", "output_config.format", "response_format", "output_format"),
        "",
        ("text", "output_config", "format"),
    ),
    FieldRemedy(("top_logprobs", "logprobs", "include"), IN_CHATS, ("n_probs", "return_logprob")),
    FieldRemedy(("n", "best_of"), f"there is one answer; {IN_CHATS} for several"),
    FieldRemedy(("prompt_logprobs",), IN_CHATS, ("decoder_input_details", "logprob_start_len")),
    FieldRemedy(("echo",), "use /v1/completions", ("return_full_text",)),
    FieldRemedy(("suffix",), "there is no infilling here", ("input_prefix", "input_suffix")),
    FieldRemedy(("tools", "functions"), IN_CHATS),
    FieldRemedy(("tool_choice", "function_call"), IN_CHATS),
    FieldRemedy(("parallel_tool_calls", "tool_choice.disable_parallel_tool_use"), IN_CHATS),
    FieldRemedy(("reasoning.effort", "output_config.effort", "reasoning_effort"), IN_CHATS),
    FieldRemedy(
        ("thinking", "enable_thinking", "reasoning"), IN_CHATS, ("think", "enable_reasoning")
    ),
    FieldRemedy(
        ("thinking.budget_tokens",),
        "the length of reasoning cannot be set; use max_tokens",
        (
            "max_reasoning_tokens",
            "max_thinking_tokens",
            "reasoning_budget",
            "thinking_budget",
            "thinking_budget_tokens",
            "thinking_token_budget",
        ),
    ),
    FieldRemedy(("include_reasoning", "thinking.display"), IN_CHATS),
    FieldRemedy(("chat_template_kwargs",), IN_CHATS, ("template_kwargs", "chat_template_args")),
    FieldRemedy(("add_generation_prompt",), IN_CHATS),
    FieldRemedy(
        ("continue_final_message", "prefill"),
        "end with what is to be gone on with: a message of the assistant, or the prompt",
    ),
    FieldRemedy(("documents",), "put them into the prompt"),
    FieldRemedy(("text.verbosity", "verbosity"), "say it in words"),
    FieldRemedy(("return_progress",), IN_CHATS),
    FieldRemedy(("return_tokens_as_token_ids",), IN_CHATS),
    FieldRemedy(
        ("previous_response_id", "conversation", "thread"),
        "use previous_response_id of /v1/responses, or send the conversation",
        ("session_params",),
    ),
    FieldRemedy(("background",), "use /v1/responses, or stream and resumable, or /v1/batches"),
    FieldRemedy(("truncate_prompt_tokens", "truncation"), "", ("truncate", "transforms")),
    FieldRemedy(
        ("context_management", "compaction"), "the context is the caller's; send fewer messages"
    ),
    FieldRemedy(("moderation",), "there is none here; leave it out"),
    FieldRemedy(
        ("mcp_servers", "container", "web_search_options"), NOTHING_RUNS, ("plugins", "web_search")
    ),
    FieldRemedy(("audio", "modalities"), TEXT_ONLY, ("image_data", "audio_data", "video_data")),
    FieldRemedy(
        ("chat_template",),
        "the model's own is used; chat_template_kwargs sets its switches",
        ("template",),
    ),
)
OF_OTHERS = (
    FieldRemedy(("input", "messages", "prompt"), "", ("inputs", "texts")),
    FieldRemedy(("truncate_prompt_tokens",), "", ("max_length", "truncate", "truncation")),
    FieldRemedy(("max_tokens_per_doc", "truncate_prompt_tokens"), "", ("max_chunks_per_doc",)),
    FieldRemedy(("dimensions",), "use /v1/embeddings", ("output_dimension", "truncate_dim")),
    FieldRemedy(("normalize", "use_activation"), "", ("embed_normalize", "normalized")),
    FieldRemedy(("pooling",), "the model's own is used", ("pooling_type",)),
    FieldRemedy(
        ("instruction",),
        "write it into the text, as the model's authors do",
        ("prompt_name", "task_type"),
    ),
    FieldRemedy(("add_special_tokens",), "pairs are joined as the model's files say"),
    FieldRemedy(("top_n",), "use /v1/rerank", ("top_k",)),
    FieldRemedy(("tools", "functions"), "write them into the text"),
    FieldRemedy(
        ("add_generation_prompt", "chat_template_kwargs", "continue_final_message"),
        "they are of messages, which /v1/embeddings takes",
    ),
    FieldRemedy(("chat_template",), "the model's own is used"),
    FieldRemedy(("image_data", "images", "mm_processor_kwargs"), TEXT_ONLY),
    FieldRemedy(("rank_fields",), "give documents as texts"),
    FieldRemedy(("lora_request", "lora_path"), "adapters are not served here"),
)
USE_INSTEAD = {
    "adapter_id": "adapters are not served here",
    "beam_width": NO_BEAMS,
    "best_of_n": "use n and best_of",
    "custom_logit_processor": "use logit_bias, allowed_token_ids or structured_outputs",
    "do_sample": "use temperature: 0",
    "dry_multiplier": "use repetition_penalty or frequency_penalty",
    "dynatemp_range": "use temperature",
    "early_stopping": NO_BEAMS,
    "ebnf": "use structured_outputs.grammar",
    "grammar": "use structured_outputs.grammar",
    "guided_whitespace_pattern": "say in structured_outputs.regex or .grammar where spaces may be",
    "json_schema": "use structured_outputs.json",
    "length_penalty": NO_BEAMS,
    "logits_processors": "use logit_bias, allowed_token_ids or structured_outputs",
    "lora_path": "adapters are not served here",
    "lora_request": "adapters are not served here",
    "mirostat": "use temperature, top_p or min_p",
    "mm_processor_kwargs": "models here read text",
    "num_beams": NO_BEAMS,
    "options": "its members are fields of the body itself",
    "parameters": "its members are fields of the body itself",
    "prompt_embeds": "give the prompt as text or token ids",
    "reasoning_format": "reasoning is split off; gateway.reasoning_parser: none leaves it",
    "regex": "use structured_outputs.regex",
    "repeat_penalty": "use repetition_penalty",
    "repetition_detection": "use repetition_penalty or frequency_penalty",
    "separate_reasoning": "reasoning is split off; gateway.reasoning_parser: none leaves it",
    "smoothing_factor": "use temperature, top_p or min_p",
    "stop_regex": "use stop, or structured_outputs.regex",
    "structural_tag": "use tools with strict, or structured_outputs",
    "tfs_z": "use top_p or min_p",
    "tokenization_kwargs": "use add_special_tokens and truncate_prompt_tokens",
    "top_a": "use min_p",
    "use_beam_search": NO_BEAMS,
    "xtc_probability": "use min_p or typical_p",
}
"""Fields that only other servers have, in requests for text."""
OF_MESSAGES = {
    "images": TEXT_ONLY,
    "partial": "use continue_final_message",
    "prefix": "use continue_final_message",
}
"""Fields that only other servers have, in messages."""
READ = ("input", "messages", "prompt", "text_1", "query")
"""Remedies apply only to bodies with one of these fields, so not to a batch's."""
PATHS = {"messages": "/v1/chat/completions", "prompt": "/v1/completions", "input": "/v1/responses"}
"""The path that reads each of these fields, which the client may have meant."""


def _by_name(remedies: Sequence[FieldRemedy]) -> dict[str, FieldRemedy]:
    return {
        name: remedy
        for remedy in reversed(remedies)
        for name in (*remedy.names, *remedy.foreign)
        if "." not in name
    }


GENERATION_REMEDIES, OTHER_REMEDIES = _by_name(OF_GENERATION), _by_name(OF_OTHERS)


def remedy_for(kind: type[msgspec.Struct], name: str) -> str | None:
    """The remedy for a field that bodies of `kind` do not have; None if no table has it."""
    is_generation = issubclass(kind, GenerationBody)
    if is_generation and name in USE_INSTEAD:
        return USE_INSTEAD[name]
    fields = {*kind.__struct_fields__} - {*refused_names(kind)}
    remedy = (GENERATION_REMEDIES if is_generation else OTHER_REMEDIES).get(name)
    if remedy is None or fields.isdisjoint(READ):
        return None
    own = [other for other in remedy.names if other.partition(".")[0] in fields]
    if not own:
        return remedy.otherwise or "leave it out"
    path = f", or {PATHS[name]}" if is_generation and name in PATHS else ""
    return f"use {own[0]}{path}"


def refuse_fields(body: msgspec.Struct) -> None:
    """Raises InvalidRequest for the first `Refused` field whose value asks for something."""
    refuse_unsupported(body, remedy_for=partial(remedy_for, type(body)))
