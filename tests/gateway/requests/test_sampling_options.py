"""Options of sampling: checked, and filled in from the model's defaults."""

from __future__ import annotations

import math
from typing import Any

import pytest

from baton.core.errors import ContextExceeded, InvalidRequest
from baton.core.sampling import SamplingParams
from baton.gateway.grpc.options import sampling_options
from baton.gateway.http.completions.schemas import ChatBody, CompletionBody
from baton.gateway.requests.options import CommonOptions, SamplingOptions
from baton.gateway.requests.sampling_options import (
    SamplingRules,
    check_prompt,
    check_stops,
    num_choices,
    resolve_sampling,
)
from baton.gateway.text.model_files import SamplingDefaults
from baton.proto import inference_pb2 as pb


def make_rules(**changes: Any) -> SamplingRules:
    values: dict[str, Any] = {
        "defaults": SamplingDefaults(),
        "vocab_size": 300,
        "max_model_len": 100,
        "encode": lambda text: tuple(text.encode()),
    }
    return SamplingRules(**{**values, **changes})


def resolve(rules: SamplingRules | None = None, **options: Any) -> SamplingParams:
    return resolve_sampling(SamplingOptions(**options), rules or make_rules(), num_prompt=10)


def test_what_is_given_is_taken() -> None:
    params = resolve(
        temperature=0.5, top_k=7, top_p=0.9, min_p=0.1, repetition_penalty=1.1,
        presence_penalty=-1, frequency_penalty=2, max_tokens=9, min_tokens=3,
        stop_token_ids=[5, 5, 6], ignore_eos=True, logprobs=4, seed=11,
    )  # fmt: skip

    assert params == SamplingParams(
        temperature=0.5, top_k=7, top_p=0.9, min_p=0.1, repetition_penalty=1.1,
        presence_penalty=-1, frequency_penalty=2, max_tokens=9, min_tokens=3,
        stop_token_ids=(5, 6), ignore_eos=True, num_logprobs=4, seed=11,
    )  # fmt: skip


def test_what_is_left_out_takes_the_models_defaults() -> None:
    defaults = SamplingDefaults(temperature=0.7, top_k=20, top_p=0.8, repetition_penalty=1.05)

    params = resolve(make_rules(defaults=defaults), top_p=0.5)

    assert (params.temperature, params.top_k, params.repetition_penalty) == (0.7, 20, 1.05)
    assert params.top_p == 0.5
    assert params.num_logprobs is None


def test_a_missing_seed_is_drawn_anew_each_time() -> None:
    seeds = {resolve().seed for _ in range(8)}

    assert len(seeds) == 8
    assert all(0 <= seed < 2**64 for seed in seeds)


@pytest.mark.parametrize(("given", "seed"), [(0, 0), (-1, 2**64 - 1), (2**64 - 1, 2**64 - 1)])
def test_seeds_are_64_bits_with_or_without_a_sign(given: int, seed: int) -> None:
    assert resolve(seed=given).seed == seed


@pytest.mark.parametrize("top_k", [0, -1])
def test_top_k_can_be_off(top_k: int) -> None:
    assert resolve(top_k=top_k).top_k == 0


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("top_k", -2),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("typical_p", 0.0),
        ("typical_p", 1.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.inf),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("max_tokens", 0),
        ("max_tokens", -5),
        ("min_tokens", -1),
        ("min_tokens", 91),
        ("logprobs", -1),
        ("logprobs", 21),
        ("prompt_logprobs", 21),
        ("priority", 2**31),
        ("priority", -(2**31) - 1),
        ("n", 0),
        ("best_of", 0),
        ("seed", 2**64),
        ("seed", -(2**63) - 1),
    ],
)
def test_bad_values_are_refused_under_the_callers_name(option: str, value: float) -> None:
    rules = make_rules(field_by_option={option: f"my_{option}"})

    with pytest.raises(InvalidRequest, match=f"my_{option}") as caught:
        resolve(rules, **{option: value})

    assert caught.value.field == f"my_{option}"


@pytest.mark.parametrize("option", ["stop_token_ids", "allowed_token_ids"])
def test_tokens_are_named_by_index(option: str) -> None:
    options: dict[str, Any] = {option: [1, 300]}
    with pytest.raises(InvalidRequest) as caught:
        resolve(**options)

    assert caught.value.field == f"{option}[1]"


def test_biases_are_taken_in_order_and_refused_by_their_token() -> None:
    assert resolve(logit_bias={9: -100, 3: 1.5}).logit_bias == ((3, 1.5), (9, -100))
    for bias in ({300: 1.0}, {-1: 1.0}, {5: 100.1}, {5: math.nan}):
        with pytest.raises(InvalidRequest) as caught:
            resolve(logit_bias=bias)
        assert caught.value.field == f"logit_bias[{next(iter(bias))}]"


def test_bad_words_are_forbidden_at_the_start_of_a_text_and_after_a_space() -> None:
    words = resolve(bad_words=["ab", " ab"]).bad_words

    assert words == (tuple(b"ab"), tuple(b" ab"))


def test_choices_are_counted_and_the_best_of_them_are_no_fewer() -> None:
    assert num_choices(SamplingOptions(), make_rules()) == (1, 1)
    assert num_choices(SamplingOptions(n=3), make_rules()) == (3, 3)
    assert num_choices(SamplingOptions(n=2, best_of=5), make_rules()) == (2, 5)
    with pytest.raises(InvalidRequest, match="best_of must be at least n, here 2"):
        num_choices(SamplingOptions(n=2, best_of=1), make_rules())


def test_every_option_of_one_face_exists_in_the_other() -> None:
    """`structured_output` is a grammar by the time it is sampled, on both faces."""
    over_grpc = set(pb.SamplingOptions.DESCRIPTOR.fields_by_name) - {"structured_output"}

    assert set(SamplingOptions.__struct_fields__) == over_grpc
    assert set(CommonOptions.__struct_fields__) <= set(CompletionBody.__struct_fields__)
    assert set(CommonOptions.__struct_fields__) <= set(ChatBody.__struct_fields__)


def test_options_are_taken_over_from_protobuf_by_name() -> None:
    message = pb.SamplingOptions(
        temperature=0, top_k=-1, stop=["a"], logit_bias={7: 1.5}, bad_words=["b"], n=2, priority=-3
    )

    assert sampling_options(message) == SamplingOptions(
        temperature=0, top_k=-1, stop=["a"], logit_bias={7: 1.5}, bad_words=["b"], n=2, priority=-3
    )
    assert sampling_options(pb.SamplingOptions()) == SamplingOptions()


@pytest.mark.parametrize("stops", [["a"] * 65, [""], ["a", "b" * 257]])
def test_bad_stop_strings_are_refused(stops: list[str]) -> None:
    with pytest.raises(InvalidRequest, match="stop"):
        check_stops(SamplingOptions(stop=stops), make_rules())


def test_equal_stop_strings_count_once() -> None:
    assert check_stops(SamplingOptions(stop=["b", "a", "b"]), make_rules()) == ("b", "a")


def test_output_may_fill_the_context_exactly() -> None:
    assert resolve(max_tokens=90).max_tokens == 90
    assert resolve().max_tokens == 90
    with pytest.raises(ContextExceeded) as caught:
        resolve(max_tokens=91)
    assert caught.value.field == "max_tokens"


def test_the_models_own_limit_comes_before_the_faces() -> None:
    rules = make_rules(defaults=SamplingDefaults(max_new_tokens=30), default_max_tokens=16)

    assert resolve(rules).max_tokens == 30
    assert resolve(rules, max_tokens=50).max_tokens == 50


def test_a_default_limit_shrinks_to_the_room_there_is() -> None:
    assert resolve(make_rules(default_max_tokens=16)).max_tokens == 16
    assert resolve(make_rules(default_max_tokens=16, max_model_len=15)).max_tokens == 5


@pytest.mark.parametrize(
    ("prompt", "kind"),
    [
        ([], InvalidRequest),
        ([300], InvalidRequest),
        ([-1], InvalidRequest),
        ([1] * 100, ContextExceeded),
    ],
)
def test_bad_prompts_are_refused(prompt: list[int], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        check_prompt(prompt, make_rules())
