"""Outputs drawn under a grammar: always sentences of it, whatever the logits, however split.

The model is noise; after a while it leans towards tokens that end things, so that sentences do end.
"""

from __future__ import annotations

import json
import random
import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests import tiny_tokenizers
from tests.sampled_rows import sample
from tokenizers import Tokenizer
from torch import Tensor

from baton.core.errors import InvalidRequest
from baton.core.sampling import Grammar, GrammarKind, SamplingParams
from baton.engine.grammar.grammar_check import GrammarChecker
from baton.engine.grammar.structured_output import LlGuidanceCompiler
from baton.engine.models.config.info import ModelInfo
from baton.engine.sampling.sampling_row import SamplingRow
from baton.kernels.sampling.token_mask import num_words, unpack_mask

DEMO = Path(__file__).parents[3] / "examples" / "demo_model" / "checkpoint"
TOKENIZERS = ["demo", "byte_level", "byte_fallback"]
ENDINGS = ["}", "]", ")", '"', "true", "0", "1", ",", ":"]
PATIENCE, MAX_TOKENS = 30, 400


class Model:
    """A tokenizer, and all that a sampler needs to know of a model."""

    def __init__(self, tokenizer_json: str, eos: str) -> None:
        self.tokenizer = Tokenizer.from_str(tokenizer_json)
        self.eos = tiny_tokenizers.token_id(tokenizer_json, eos)
        self.vocab_size = self.tokenizer.get_vocab_size() + 3  # rows without a token
        self.compiler = LlGuidanceCompiler(
            GrammarChecker(lambda: tokenizer_json, [self.eos]),
            vocab_size=self.vocab_size,
            eos_token_ids=[self.eos],
        )
        self.lean = torch.zeros(self.vocab_size)
        for rank, text in enumerate(reversed(ENDINGS)):
            self.lean[self.tokens(text)] = 10.0 + rank
        self.lean[self.eos] = 30.0
        self.specials = {
            token
            for token, added in self.tokenizer.get_added_tokens_decoder().items()
            if added.special
        }

    def tokens(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def text(self, tokens: list[int]) -> str:
        decoded: str = self.tokenizer.decode(tokens, skip_special_tokens=False)
        return decoded

    def write(self, grammar: Grammar, seed: int, **params: Any) -> list[int]:
        """Tokens up to, and without, the end; or MAX_TOKENS of them."""
        matcher = self.compiler.compile(grammar)
        noise = torch.Generator().manual_seed(seed)
        sampling = SamplingParams(seed=seed, **params)
        output: list[int] = []
        while len(output) < MAX_TOKENS:
            logits = torch.randn(1, self.vocab_size, generator=noise) * 4
            if len(output) >= PATIENCE:
                logits += self.lean
            row = SamplingRow(sampling, [0], output, matcher)
            (sampled,) = sample(logits, [row], [self.eos])
            matcher.accept([sampled.token])
            if sampled.token == self.eos:
                return output
            output.append(sampled.token)
        return output


@cache
def model(name: str) -> Model:
    if name == "demo":
        return Model((DEMO / "tokenizer.json").read_text(), "<|end|>")
    return Model(getattr(tiny_tokenizers, name)(), tiny_tokenizers.EOS)


def mask_of(matcher: Any, vocab_size: int) -> Tensor:
    mask = torch.empty(num_words(vocab_size), dtype=torch.int32)
    matcher.fill_mask(mask)
    return unpack_mask(mask.unsqueeze(0), vocab_size)[0]


def allowed(matcher: Any, vocab_size: int) -> set[int]:
    return set(mask_of(matcher, vocab_size).nonzero().flatten().tolist())


def json_schema(schema: object) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))


def regex(source: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, source)


leaves = st.sampled_from(
    [
        {"type": "integer"},
        {"type": "integer", "minimum": -3, "maximum": 120},
        {"type": "number", "minimum": -1, "maximum": 2.5},
        {"type": "boolean"},
        {"type": "null"},
        {"type": "string"},
        {"type": "string", "maxLength": 5},
        {"type": "string", "minLength": 2, "maxLength": 4},
        {"type": "string", "pattern": "^[a-c]{1,4}$"},
        {"type": "string", "format": "date"},
        {"enum": ["left", "right", 7, None]},
        {"const": {"a": [1, "é"]}},
        {},
    ]
)


def nested(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    arrays = st.builds(
        lambda items, low: {"type": "array", "items": items, "minItems": low, "maxItems": low + 2},
        inner,
        st.integers(0, 2),
    )
    names = st.sampled_from(["a", "name", "é", "with space", 'quo"te'])
    objects = st.builds(
        lambda properties, is_open, picks: {
            "type": "object",
            "properties": properties,
            "required": [name for name, pick in zip(properties, picks, strict=False) if pick],
            "additionalProperties": is_open,
        },
        st.dictionaries(names, inner, max_size=3),
        st.booleans(),
        st.lists(st.booleans(), min_size=3, max_size=3),
    )
    either = st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner)
    return st.one_of(arrays, objects, either)


schemas = st.recursive(leaves, nested, max_leaves=5)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(schemas, st.integers(0, 2**32))
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])
def test_what_a_schema_lets_through_is_json_that_it_validates(
    name: str, schema: dict[str, Any], seed: int
) -> None:
    output = model(name).write(json_schema(schema), seed)

    assert len(output) < MAX_TOKENS
    value = json.loads(model(name).text(output))
    assert jsonschema_rs.is_valid(schema, value)


atoms = st.sampled_from(["a", "[b-d]", "[0-9]", "xyz", r"\.", "é", "[^a-z\\n]", " "])


def combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    repeats = st.sampled_from(["*", "+", "?", "{2}", "{1,3}"])
    return st.one_of(
        st.builds(lambda a, b: f"{a}{b}", inner, inner),
        st.builds(lambda a, b: f"(?:{a}|{b})", inner, inner),
        st.builds(lambda a, times: f"(?:{a}){times}", inner, repeats),
    )


regexes = st.recursive(atoms, combined, max_leaves=6)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(regexes, st.integers(0, 2**32))
@settings(deadline=None, max_examples=20)
def test_what_a_regex_lets_through_matches_it(name: str, source: str, seed: int) -> None:
    output = model(name).write(regex(source), seed)

    assume(len(output) < MAX_TOKENS)  # some loops are left by one letter alone
    assert re.fullmatch(source, model(name).text(output))


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_lark_grammar_of_balanced_brackets_balances_them(name: str) -> None:
    source = 'start: pair+\npair: "(" pair* ")" | "[" pair* "]"'

    for seed in range(3):
        output = model(name).write(Grammar(GrammarKind.LARK, source), seed)
        assert len(output) < MAX_TOKENS
        rest = text = model(name).text(output)
        for _ in text:
            rest = rest.replace("()", "").replace("[]", "")
        assert rest == ""


@pytest.mark.parametrize("name", TOKENIZERS)
def test_other_masks_yield_to_the_grammar(name: str) -> None:
    params = {"allowed_token_ids": (0,), "bad_words": ((model(name).eos,),), "min_tokens": 99}

    output = model(name).write(regex("abc"), seed=1, **params)

    assert model(name).text(output) == "abc"


@pytest.mark.parametrize("name", TOKENIZERS)
def test_special_tokens_are_no_text(name: str) -> None:
    """Any text may come, `<s>` spelt out included, but no token that stands for more than text."""
    here = model(name)
    special_texts = [here.text([token]) for token in here.specials]

    anything = here.compiler.compile(regex("(?s:.*)"))
    spelt = here.compiler.compile(regex("|".join(map(re.escape, special_texts))))

    assert allowed(anything, here.vocab_size) & here.specials == {here.eos}
    assert allowed(spelt, here.vocab_size) & here.specials == set()


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
def test_special_tokens_come_where_a_lark_grammar_names_them(name: str) -> None:
    here = model(name)
    call = here.tokenizer.token_to_id(tiny_tokenizers.CALL)

    output = here.write(Grammar(GrammarKind.LARK, 'start: <|call|> "yes"'), seed=3)

    assert output[0] == call
    assert here.text(output[1:]) == "yes"


@pytest.mark.parametrize("name", TOKENIZERS)
@given(st.data())
@settings(deadline=None, max_examples=6)
def test_accepting_in_any_split_gives_the_same_mask(name: str, data: st.DataObject) -> None:
    """So a request that was preempted, handed over or continued elsewhere goes on alike."""
    here = model(name)
    grammar = data.draw(
        st.sampled_from([json_schema({"type": "object"}), regex("(ab|[a-z0-9]{2} )*")])
    )
    output = [*here.write(grammar, data.draw(st.integers(0, 1000))), here.eos]
    cut = data.draw(st.integers(0, len(output)))
    split = sorted(data.draw(st.lists(st.integers(0, cut), max_size=3)))

    step_by_step, in_pieces = here.compiler.compile(grammar), here.compiler.compile(grammar)
    for token in output[:cut]:
        assert mask_of(step_by_step, here.vocab_size)[token]
        step_by_step.accept([token])
    for start, stop in zip([0, *split], [*split, cut], strict=True):
        in_pieces.accept(output[start:stop])

    assert torch.equal(mask_of(step_by_step, here.vocab_size), mask_of(in_pieces, here.vocab_size))


def test_the_end_is_allowed_where_a_sentence_may_end_and_nothing_behind_it() -> None:
    here = model("byte_level")
    (a,) = here.tokens("a")
    matcher = here.compiler.compile(regex("aa?"))

    assert allowed(matcher, here.vocab_size) == {a}
    matcher.accept([a])
    assert allowed(matcher, here.vocab_size) == {a, here.eos}
    matcher.accept([a])
    assert allowed(matcher, here.vocab_size) == {here.eos}
    matcher.accept([here.eos])
    assert allowed(matcher, here.vocab_size) == {here.eos}
    with pytest.raises(InvalidRequest, match="after the end"):
        matcher.accept([a])


def test_any_of_several_end_tokens_ends_a_sentence() -> None:
    here = model("byte_level")
    begin = tiny_tokenizers.token_id(tiny_tokenizers.byte_level(), tiny_tokenizers.BOS)
    ends = {here.eos, begin}
    compiler = LlGuidanceCompiler(
        GrammarChecker(tiny_tokenizers.byte_level, ends),
        vocab_size=here.vocab_size,
        eos_token_ids=ends,
    )

    for end in ends:
        matcher = compiler.compile(regex("a?"))
        assert allowed(matcher, here.vocab_size) == {*ends, *here.tokens("a")}
        matcher.accept([end])
        assert allowed(matcher, here.vocab_size) == ends


@pytest.mark.parametrize("tokens", ["b", "ab"])
def test_what_the_grammar_does_not_allow_is_not_accepted(tokens: str) -> None:
    here = model("byte_level")
    matcher = here.compiler.compile(regex("a+c"))

    with pytest.raises(InvalidRequest, match="cannot be followed"):
        matcher.accept(here.tokens(tokens))


def test_the_end_is_not_accepted_within_a_sentence() -> None:
    here = model("byte_level")
    matcher = here.compiler.compile(regex("ab"))

    with pytest.raises(InvalidRequest, match="cannot be followed"):
        matcher.accept([*here.tokens("a"), here.eos])


def test_a_model_with_fewer_logits_than_its_tokenizer_has_tokens_draws_none_it_lacks() -> None:
    here = model("byte_level")
    (a,) = here.tokens("a")
    small = LlGuidanceCompiler(
        GrammarChecker(tiny_tokenizers.byte_level, [here.eos]),
        vocab_size=a + 1,
        eos_token_ids=[here.eos],
    )

    assert allowed(small.compile(regex("[ab]")), a + 1) == {a}
    with pytest.raises(InvalidRequest, match="no token of this model"):
        small.compile(regex("b"))


def test_asking_after_a_token_that_the_tokenizer_lacks_changes_nothing() -> None:
    here = model("byte_level")
    unknown = tiny_tokenizers.vocab_size(tiny_tokenizers.byte_level()) + 5
    matcher = here.compiler.compile(regex("ab"))

    assert matcher.num_allowed(here.tokens("ab")) == 2
    assert not matcher.num_allowed([unknown])

    matcher.accept(here.tokens("ab"))
    assert allowed(matcher, here.vocab_size) == {here.eos}


def test_a_model_without_an_end_token_cannot_follow_a_grammar() -> None:
    compiler = LlGuidanceCompiler(
        GrammarChecker(tiny_tokenizers.byte_level), vocab_size=400, eos_token_ids=()
    )

    with pytest.raises(InvalidRequest, match="end-of-sequence"):
        compiler.compile(regex("a"))


def info(vocab_size: int) -> ModelInfo:
    return ModelInfo(
        architecture="any",
        vocab_size=vocab_size,
        max_model_len=100,
        eos_token_ids=(1,),
        dtype="float32",
        fingerprint=b"",
        num_layers=1,
        num_kv_heads=1,
        head_dim=8,
    )


def test_a_compiler_reads_the_tokenizer_of_a_model_folder() -> None:
    matcher = LlGuidanceCompiler.from_folder(DEMO, info(4096)).compile(regex("[0-9]"))

    digits = {model("demo").text([token]) for token in allowed(matcher, 4096)}
    assert digits == set("0123456789")


def test_a_folder_without_a_tokenizer_matters_to_grammars_alone(tmp_path: Path) -> None:
    compiler = LlGuidanceCompiler.from_folder(tmp_path, info(4096))

    with pytest.raises(InvalidRequest, match=r"tokenizer\.json"):
        compiler.compile(regex("a"))


def test_matchers_of_one_compiler_go_their_own_ways() -> None:
    here = model("demo")
    grammar = json_schema({"type": "array", "items": {"enum": ["x", "y"]}})
    rng = random.Random(0)
    matchers = [here.compiler.compile(grammar) for _ in range(3)]
    paths: list[list[int]] = [[], [], []]

    for _ in range(30):
        i = rng.randrange(3)
        token = rng.choice(sorted(allowed(matchers[i], here.vocab_size)))
        matchers[i].accept([token])
        paths[i].append(token)

    for matcher, path in zip(matchers, paths, strict=True):
        again = here.compiler.compile(grammar)
        again.accept(path)
        assert allowed(matcher, here.vocab_size) == allowed(again, here.vocab_size)
