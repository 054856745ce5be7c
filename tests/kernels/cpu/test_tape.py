"""Tapes recorded from small computations, and played for passes of other sizes."""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from baton.kernels.cpu.build import SOURCES
from baton.kernels.cpu.library import library
from baton.kernels.cpu.operators import Call, Pass, call, signature_of
from baton.kernels.cpu.tape import NUM_OUTPUTS, NUM_TOKENS, NotRecordable, Recorder, Tape
from baton.kernels.elementwise.add import add
from baton.kernels.elementwise.gelu import gelu
from baton.kernels.elementwise.take_rows import take_rows
from baton.kernels.residual.rms_norm import add_rms_norm

pytestmark = pytest.mark.skipif(library() is None, reason="no compiled operators here")

WIDTH, MAX_TOKENS = 48, 700
NUM_LAYERS = 3
WEIGHT = torch.ones(WIDTH)
SOURCE = "\n".join(path.read_text() for path in sorted(SOURCES.rglob("*.cpp")))


class Model:
    """Sums, norms and activations of what lies in `x`, and at last some rows of it."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(MAX_TOKENS, WIDTH, generator=generator)
        self.weight = torch.randn(WIDTH, generator=generator)
        self.rows = torch.arange(MAX_TOKENS)

    def run(self, num_tokens: int, num_outputs: int, recorder: Recorder | None = None) -> Tensor:
        x = residual = self.x[:num_tokens]
        for layer in range(NUM_LAYERS):
            x, residual = add_rms_norm(x, residual, self.weight, 1e-5)
            x = add(gelu(x), x)
            if recorder is not None:
                recorder.mark(layer)
        return take_rows(x, self.rows[:num_outputs])

    def tape(self) -> Tape:
        with Recorder() as recorder:
            result = self.run(NUM_TOKENS, NUM_OUTPUTS, recorder)
        return recorder.tape(result, max_tokens=MAX_TOKENS, max_outputs=MAX_TOKENS)


@pytest.fixture(params=[1, 2, 5])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("num_outputs", [1, 2, 700])
@pytest.mark.parametrize("num_tokens", [1, 2, 63, 700])
def test_a_pass_of_any_size_is_played(num_tokens: int, num_outputs: int, num_threads: int) -> None:
    model = Model()
    tape = model.tape()

    for _ in range(20):
        tape.result.zero_()
        tape.play(Pass(num_tokens=num_tokens, num_outputs=min(num_outputs, num_tokens)))

        outputs = min(num_outputs, num_tokens)
        assert torch.equal(tape.result[:outputs], model.run(num_tokens, outputs))


def test_without_outputs_all_else_is_still_computed(num_threads: int) -> None:
    tape = Model().tape()

    tape.play(Pass(num_tokens=9, num_outputs=0))
    tape.play(Pass(num_tokens=0, num_outputs=0))


def test_results_that_are_not_needed_at_once_share_memory() -> None:
    tape = Model().tape()

    written = sum(len(call.outputs) for call in tape.calls)
    assert tape.memory.nbytes < (written / 2) * MAX_TOKENS * WIDTH * 4


def test_a_result_that_was_there_early_is_still_there_at_the_end() -> None:
    x = torch.randn(NUM_TOKENS, WIDTH)
    with Recorder() as recorder:
        result = gelu(x)
        y = result
        for _ in range(3):
            y = add(y, x)
    tape = recorder.tape(result, max_tokens=NUM_TOKENS, max_outputs=NUM_OUTPUTS)

    tape.play(Pass(num_tokens=NUM_TOKENS))

    assert torch.equal(tape.result[:NUM_TOKENS], gelu(x))


def test_what_is_wanted_besides_costs_nothing_while_nobody_wants_it() -> None:
    x = torch.randn(NUM_TOKENS, WIDTH)
    with Recorder() as recorder:
        result = gelu(x)
        besides = add(add(x, x), result)
        result = add(result, x)
    tape = recorder.tape(result, max_tokens=NUM_TOKENS, max_outputs=NUM_OUTPUTS, further=(besides,))
    tape.memory.zero_()

    tape.play_bare(Pass(num_tokens=NUM_TOKENS))

    assert torch.equal(tape.result[:NUM_TOKENS], result)
    assert not tape.further[0].any()
    assert (len(tape.bare_entries), len(tape.entries)) == (2, 4)
    tape.play(Pass(num_tokens=NUM_TOKENS))
    assert torch.equal(tape.further[0][:NUM_TOKENS], besides)


def test_layers_are_told_of_one_by_one(num_threads: int) -> None:
    model = Model()
    tape, told = model.tape(), list[int]()

    tape.play_by_layer(Pass(num_tokens=40, num_outputs=40), told.append)

    assert told == list(range(NUM_LAYERS))
    assert torch.equal(tape.result[:40], model.run(40, 40))


def test_each_operator_can_be_timed(num_threads: int) -> None:
    tape = Model().tape()
    seconds = (ctypes.c_double * len(tape.calls))()

    tape.play(Pass(num_tokens=500, num_outputs=500), seconds=seconds)

    assert [call.name for call in tape.calls[:3]] == ["rms_norm_f32", "gelu_f32", "add_f32"]
    assert all(second > 0 for second in seconds)


def test_what_is_given_may_be_another_tensor_each_time() -> None:
    given = torch.randn(NUM_OUTPUTS, WIDTH)
    with Recorder() as recorder:
        result = gelu(given)
    tape = recorder.tape(result, max_tokens=0, max_outputs=20, given=given)

    for other in (torch.randn(20, WIDTH), torch.randn(3, WIDTH)):
        tape.give(other)
        tape.play(Pass(num_outputs=len(other)))
        assert torch.equal(tape.result[: len(other)], gelu(other))


def test_rows_that_are_neither_tokens_nor_outputs_are_refused() -> None:
    with Recorder(), pytest.raises(NotRecordable, match="neither tokens nor outputs"):
        gelu(torch.randn(3, WIDTH))


def test_a_result_of_torch_makes_no_tape() -> None:
    with Recorder() as recorder:
        result = gelu(torch.randn(NUM_TOKENS, WIDTH)) * 2

    with pytest.raises(NotRecordable, match="no operator wrote the result"):
        recorder.tape(result, max_tokens=8, max_outputs=8)


def test_only_the_thread_that_records_is_recorded() -> None:
    x = torch.randn(NUM_TOKENS, WIDTH)
    with Recorder() as recorder:
        thread = threading.Thread(target=gelu, args=(torch.randn(3, WIDTH),))
        thread.start()
        thread.join()
        tape = recorder.tape(gelu(x), max_tokens=8, max_outputs=8)

    assert len(tape.calls) == 1


def test_an_error_ends_the_recording() -> None:
    with pytest.raises(RuntimeError), Recorder():
        raise RuntimeError
    assert gelu(torch.randn(3, WIDTH)).shape == (3, WIDTH)


def test_engines_of_one_process_play_at_once(num_threads: int) -> None:
    """Who finds the helpers taken plays alone."""
    models = [Model() for _ in range(3)]
    tapes = [model.tape() for model in models]
    expected = models[0].run(300, 300)
    wrong: list[int] = []

    def play(number: int) -> None:
        for _ in range(100):
            tapes[number].play(Pass(num_tokens=300, num_outputs=300))
            if not torch.equal(tapes[number].result[:300], expected):
                wrong.append(number)

    threads = [threading.Thread(target=play, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not wrong


def test_a_forked_process_has_threads_of_its_own() -> None:
    """Its own torch has none: what is done there is done by operators, or byte by byte."""
    model = Model()
    tape, before = model.tape(), torch.get_num_threads()
    torch.set_num_threads(2)
    tape.play(Pass(num_tokens=500, num_outputs=500))
    address, num_bytes = tape.result.data_ptr(), 500 * WIDTH * 4
    expected = ctypes.string_at(address, num_bytes)

    child = os.fork()
    if child == 0:
        ctypes.memset(address, 0, num_bytes)
        tape.play(Pass(num_tokens=500, num_outputs=500))
        os._exit(0 if ctypes.string_at(address, num_bytes) == expected else 1)

    _, status = os.waitpid(child, 0)
    torch.set_num_threads(before)
    assert status == 0


def test_an_operator_that_there_is_not_is_said() -> None:
    x = torch.randn(1, WIDTH)
    with pytest.raises(AttributeError, match="no_such_operator"):
        call(Call("no_such_operator", rows=1, inputs={"x": x}, outputs={"y": x}))


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"x": WEIGHT}, "numbers missing: width"),
        ({"x": WEIGHT, "widht": WIDTH}, "missing: width; numbers that it does not take: widht"),
        ({"width": WIDTH}, "tensors missing: x"),
        ({"x": WIDTH, "width": WIDTH}, "tensors missing: x; numbers that it does not take: x"),
        ({"x": WEIGHT, "width": WIDTH, "bias": None}, "tensors that it does not take: bias"),
        ({"x": WEIGHT, "width": 48.5}, "int"),
    ],
    ids=["none", "misspelt", "no tensor", "a number for a tensor", "one too many", "no integer"],
)
def test_an_operator_takes_what_it_declares_by_name(
    inputs: dict[str, Tensor | float | None], said: str
) -> None:
    y = torch.zeros(WIDTH)

    with pytest.raises(TypeError, match=said):
        call(Call("gelu_f32", rows=1, inputs=inputs, outputs={"y": y}))

    assert not y.any()


def test_every_operator_declares_its_fields_in_the_order_of_its_source() -> None:
    names = re.findall(r"^OPERATOR\((\w+),", SOURCE, re.MULTILINE)

    signatures = {name: signature_of(name) for name in names}

    assert len(names) > 80
    for signature in signatures.values():
        first, *fields = signature.args._fields_
        assert first[0] == "rows"
        assert {field[0] for field in fields} == signature.tensors | signature.numbers
        assert ctypes.sizeof(signature.args) == 8 * (1 + len(fields))
