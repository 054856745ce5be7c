"""The heads that come with the demo model: trained ones guess well above chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.engine.speculation.handing_over import handed_over
from tokenizers import Tokenizer

from baton.core.sampling import SamplingParams
from baton.engine.assemble import assemble_engine
from baton.engine.config import CacheConfig, EngineConfig, SpeculationConfig
from baton.engine.engine import Engine
from baton.engine.request.request import Request
from baton.engine.speculation.carrying import SPEEDS, Needs, Speeds, Way
from baton.engine.speculation.drafter import Draft, Drafter
from baton.platform.models.model_folder import built_in_folder, find_model

SOURCE = '''class Cache:
    """Keeps what was computed."""

    def __init__(self, size):
        self.size = size
        self.items = {}

    def get(self, name):
'''


def outputs(engine: Engine) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(find_model("demo") / "tokenizer.json"))
    prompt = tokenizer.encode(SOURCE).ids
    requests = [
        Request(
            f"{temperature}",
            prompt,
            sampling=SamplingParams(
                temperature=temperature, seed=1, max_tokens=48, ignore_eos=True
            ),
        )
        for temperature in (0.0, 0.7)
    ]
    for request in requests:
        engine.add(request)
    while engine.has_work:
        engine.step()
    return [request.output for request in requests]


class Watched:
    """A drafter, and what it drafted behind so many tokens."""

    is_costly = False

    def __init__(self, drafter: Drafter) -> None:
        self.name = drafter.name
        self.forget = drafter.forget
        self.drafts: dict[int, Sequence[int]] = {}
        self._drafter = drafter

    def propose(self, requests: Sequence[Request], max_tokens: int) -> list[Draft]:
        drafts = self._drafter.propose(requests, max_tokens)
        for request, draft in zip(requests, drafts, strict=True):
            self.drafts[len(request.tokens)] = draft.tokens
        return drafts


@pytest.mark.parametrize(
    ("method", "kv_dtype"),
    [
        ("eagle", "auto"),
        pytest.param("eagle", "int4", marks=pytest.mark.wide),
        pytest.param("p-eagle", "auto", marks=pytest.mark.wide),
    ],
)
def test_a_prompt_that_was_handed_over_is_drafted_for_as_one_that_was_computed_here(
    method: Any, kv_dtype: str
) -> None:
    speculation = SpeculationConfig(
        method=method, model=str(built_in_folder(method)), max_tokens=1, adaptive=False
    )
    here = EngineConfig(
        cache=CacheConfig(num_blocks=64, kv_dtype=kv_dtype),  # type: ignore[arg-type]
        speculation=speculation,
        keeps_features_for=replace(speculation, features="on"),
    )
    folder, drafts, outputs = find_model("demo"), [], []
    prompt = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(2 * SOURCE).ids
    sampling = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    for is_handed_over in (False, True):
        engine = assemble_engine(folder, here)
        assert engine.speculation is not None
        watched = Watched(engine.speculation.drafter)
        engine.speculation.drafter = watched
        if is_handed_over:
            other = assemble_engine(folder, replace(here, speculation=SpeculationConfig()))
            request = handed_over(other, engine, prompt, sampling)
        else:
            request = Request("r", prompt, sampling=sampling)
            engine.add(request)
        while engine.has_work:
            engine.step()
        drafts.append(watched.drafts)
        outputs.append(request.output)
        assert request.num_draft_missing == 0

    aggregated, after = drafts
    common = aggregated.keys() & after.keys()
    assert outputs[0] == outputs[1]
    assert len(common) > 12
    assert [after[at] for at in common] == [aggregated[at] for at in common]


def test_features_that_would_make_blocks_much_larger_are_kept_only_where_they_are_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for asked, is_kept in (("auto", False), ("on", True)):
        speculation = SpeculationConfig(
            method="eagle",
            model=str(built_in_folder("eagle")),
            features=asked,  # type: ignore[arg-type]
        )
        cache = CacheConfig(num_blocks=8, kv_dtype="int8")
        engine = assemble_engine(
            find_model("demo"), EngineConfig(cache=cache, keeps_features_for=speculation)
        )
        assert (engine.features is not None) == is_kept
        assert (engine.speculation is not None) == is_kept
    assert "not kept; set speculation.features to on" in caplog.text


def test_features_are_kept_where_they_are_cheaper_carried_than_computed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    speculation = SpeculationConfig(
        method="eagle", model=str(built_in_folder("eagle")), features="auto"
    )
    config = EngineConfig(cache=CacheConfig(num_blocks=8), keeps_features_for=speculation)
    near, far = (Speeds(link_bytes_s=link, device_flops_s=1e12) for link in (1e9, 1e6))

    for speeds, is_kept in ((near, True), (far, False)):
        monkeypatch.setitem(SPEEDS, "cpu", speeds)
        assert (assemble_engine(find_model("demo"), config).features is not None) == is_kept
    assert "us to compute again: not kept" in caplog.text


def test_what_is_made_anew_for_the_same_work_is_never_carried() -> None:
    kv = Needs(carried_bytes=1.0, carried_flops=1e9, computed_flops=1e9)
    features = Needs(carried_bytes=8192.0, computed_flops=16e9)
    for link in (1e8, 1e9, 1e11):
        speeds = Speeds(link_bytes_s=link, device_flops_s=400e12)
        assert kv.cheaper(speeds) == "compute"
        ways: list[Way] = ["carry", "compute"]
        assert features.cheaper(speeds) == min(ways, key=lambda w: features.seconds(w, speeds))


@pytest.mark.parametrize(
    ("method", "least"), [("eagle", 0.25), ("p-eagle", 0.15), ("medusa", 0.08)]
)
def test_the_heads_of_the_demo_guess_many_tokens_and_change_none(method: str, least: float) -> None:
    cache = CacheConfig(num_blocks=64)
    speculation = SpeculationConfig(
        method=method,  # type: ignore[arg-type]
        model=str(built_in_folder(method)),
        max_tokens=2,
        adaptive=False,
    )
    folder = find_model("demo")
    plain = assemble_engine(folder, EngineConfig(cache=cache))
    engine = assemble_engine(folder, EngineConfig(cache=cache, speculation=speculation))

    assert outputs(engine) == outputs(plain)
    assert engine.stats.num_accepted > least * engine.stats.num_drafted > 0
