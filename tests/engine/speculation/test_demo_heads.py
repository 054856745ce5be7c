"""The heads that come with the demo model: trained ones guess well above chance."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from baton.core.messages import SamplingParams
from baton.engine.assemble import assemble_engine
from baton.engine.config import CacheConfig, EngineConfig, SpeculationConfig
from baton.engine.engine import Engine
from baton.engine.request.request import Request
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


@pytest.mark.parametrize(("method", "least"), [("eagle", 0.25), ("medusa", 0.08)])
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
