"""The runner without a model answers as promised, and notices wrong KV."""

from __future__ import annotations

import pytest

from baton.engine.batch.batch import Chunk
from baton.engine.passes.echo import EchoRunner, echo_info, echo_output

PROMPT = list(range(10, 30))


def make_runner(*, num_layers: int = 2, is_verifying: bool = True) -> EchoRunner:
    info = echo_info(num_layers=num_layers)
    return EchoRunner(info, num_blocks=16, block_size=4, is_verifying=is_verifying)


def next_token(runner: EchoRunner, chunk: Chunk) -> int:
    return int(runner.logits(runner.forward([chunk])).argmax())


@pytest.mark.parametrize("is_verifying", [True, False])
@pytest.mark.parametrize("num_first", [1, 4, 7, 19])
def test_the_next_token_does_not_depend_on_how_the_prompt_is_cut(
    num_first: int, is_verifying: bool
) -> None:
    runner = make_runner(is_verifying=is_verifying)
    blocks = [5, 3, 9, 0, 2]
    runner.forward([Chunk(PROMPT[:num_first], 0, blocks, 0)])

    token = next_token(runner, Chunk(PROMPT[num_first:], num_first, blocks, 1))

    assert [token] == echo_output(PROMPT, 1, runner.info.vocab_size)


def test_only_the_outputs_that_are_wanted_are_there() -> None:
    runner = make_runner()
    chunks = [
        Chunk([1, 2], 0, [0], 1),
        Chunk([3, 4], 0, [1], 0),
        Chunk([5, 6, 7], 0, [2], 2),
    ]

    logits = runner.logits(runner.forward(chunks))

    contexts = [[1, 2], [5, 6], [5, 6, 7]]
    assert logits.argmax(dim=1).tolist() == [echo_output(one, 1, 256)[0] for one in contexts]
    assert runner.logits(runner.forward([Chunk([7], 0, [3], 0)])).shape == (0, 256)


def test_every_token_of_the_context_matters() -> None:
    outputs = set()
    for changed in range(len(PROMPT)):
        prompt = [token + (index == changed) for index, token in enumerate(PROMPT)]
        outputs.add(tuple(echo_output(prompt, 4, 2**16)))

    assert len(outputs) == len(PROMPT)


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("byte", [0, 8, 16, 24, 4 * 32, 4 * 32 + 31])
def test_a_wrong_byte_anywhere_in_the_past_is_noticed(layer: int, byte: int) -> None:
    runner = make_runner()
    runner.forward([Chunk(PROMPT, 0, [5, 3, 9, 0, 2], 1)])
    data = bytearray(runner.cache.view(9, layer))
    data[byte] ^= 1
    runner.cache.write(9, layer, memoryview(data))

    with pytest.raises(RuntimeError, match=f"layer {layer}"):
        runner.forward([Chunk([1], 20, [5, 3, 9, 0, 2, 1], 1)])


def test_blocks_in_the_wrong_order_are_noticed() -> None:
    runner = make_runner()
    runner.forward([Chunk(PROMPT, 0, [5, 3, 9, 0, 2], 1)])

    with pytest.raises(RuntimeError, match="wrong KV"):
        runner.forward([Chunk([1], 20, [5, 9, 3, 0, 2, 1], 1)])


def test_kv_copied_byte_by_byte_continues_elsewhere() -> None:
    source, target = make_runner(), make_runner()
    source.forward([Chunk(PROMPT, 0, [5, 3, 9, 0, 2], 1)])
    for layer in range(2):
        for ours, theirs in zip([0, 1, 2, 3, 4], [5, 3, 9, 0, 2], strict=True):
            target.cache.write(ours, layer, source.cache.view(theirs, layer))
    first, second = echo_output(PROMPT, 2, 256)

    assert next_token(target, Chunk([first], 20, [0, 1, 2, 3, 4, 5], 1)) == second
