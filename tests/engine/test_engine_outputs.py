"""What the engine answers does not depend on how, or where, it was computed; and when it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from tests.echo_engines import BLOCK_SIZE, VOCAB, make_engine, make_request, run
from tests.grammar_compilers import LETTERS, AnyToken

from baton.core.kv_pool import Holder, HolderKind
from baton.core.sampling import FinishReason
from baton.engine.config import SchedulerConfig
from baton.engine.engine import Engine
from baton.engine.passes.echo import echo_output
from baton.engine.request.request import Phase, Request
from baton.engine.schedule.drafted_chunks import ScheduledChunk
from baton.engine.step_hooks import StepHooks

pytestmark = pytest.mark.usefixtures("sync_and_async")


def make_prompts(count: int) -> list[list[int]]:
    """Of different lengths; some begin alike."""
    return [
        [(index % 3) * 50 + position for position in range(5 + 3 * index % 17)]
        + [index] * (index % 4)
        for index in range(count)
    ]


def test_a_request_gets_the_tokens_it_must_get() -> None:
    engine, request = make_engine(), make_request(max_tokens=8)
    engine.add(request)

    reports = run(engine)

    assert request.output == echo_output(range(11), 8, VOCAB)
    assert [token for r in reports for o in r.outputs for token in o.tokens] == request.output
    last = reports[-1].outputs[0]
    assert (last.is_finished, last.finish_reason) == (True, FinishReason.LENGTH)
    assert request.phase is Phase.FINISHED


@pytest.mark.parametrize(
    ("num_blocks", "scheduler", "prefix_caching"),
    [
        pytest.param(256, SchedulerConfig(max_running=1), True, id="alone"),
        pytest.param(256, SchedulerConfig(), True, id="batched"),
        pytest.param(256, SchedulerConfig(), False, id="no prefix cache"),
        pytest.param(256, SchedulerConfig(max_batch_tokens=7), True, id="budget of 7"),
        pytest.param(256, SchedulerConfig(prefill_chunk=7), True, id="chunk of 7"),
        pytest.param(24, SchedulerConfig(), True, id="tiny pool"),
        pytest.param(24, SchedulerConfig(), False, id="tiny pool without prefix cache"),
        pytest.param(24, SchedulerConfig(prefill_chunk=3), True, id="tiny pool and chunk"),
    ],
)
def test_outputs_do_not_depend_on_how_requests_are_scheduled(
    num_blocks: int, scheduler: SchedulerConfig, prefix_caching: bool
) -> None:
    engine = make_engine(num_blocks=num_blocks, scheduler=scheduler, prefix_caching=prefix_caching)
    requests = [
        make_request(str(index), prompt, max_tokens=40)
        for index, prompt in enumerate(make_prompts(16))
    ]
    for request in requests:
        engine.add(request)

    run(engine)

    for request in requests:
        assert request.output == echo_output(request.prompt, 40, VOCAB)
    assert (engine.stats.num_preempted > 0) == (num_blocks == 24)
    assert engine.pool.num_in_use == 0


def test_outputs_do_not_depend_on_priorities() -> None:
    engine = make_engine(num_blocks=24, scheduler=SchedulerConfig(prefill_chunk=7))
    requests = [
        make_request(str(index), prompt, max_tokens=40)
        for index, prompt in enumerate(make_prompts(16))
    ]
    for index, request in enumerate(requests):
        request.priority = -index % 3
        engine.add(request)

    run(engine)

    for request in requests:
        assert request.output == echo_output(request.prompt, 40, VOCAB)
    assert engine.stats.num_preempted > 0
    assert engine.pool.num_in_use == 0


def test_a_second_request_runs_only_what_the_first_has_not_computed() -> None:
    engine = make_engine()
    first, second = make_request("1"), make_request("2")
    for request in (first, second):
        engine.add(request)
        run(engine)

    assert second.output == first.output
    assert (first.num_cached, second.num_cached) == (0, 8)
    assert second.num_run == first.num_run - 8
    assert engine.stats.num_tokens_cached == 8
    assert engine.stats.num_tokens_looked_up == len(first.prompt) + len(second.prompt)


def test_a_choice_that_comes_while_another_runs_shares_the_blocks_of_their_prompt() -> None:
    engine = make_engine()
    first, second = make_request("1"), make_request("2", choice=1)
    engine.add(first)
    engine.step()
    engine.add(second)
    engine.step()

    ours, theirs = engine.pool.table(first.holder), engine.pool.table(second.holder)
    assert ours[:2] == theirs[:2]
    assert ours[2] != theirs[2]  # not full when the second came
    assert [engine.pool.census().ref_counts[block] for block in ours[:2]] == [2, 2]
    assert (second.num_cached, second.num_run) == (8, 3)

    engine.abort("1")
    run(engine)

    assert second.output == echo_output(range(11), 8, VOCAB)
    assert engine.pool.num_in_use == 0


def test_a_preempted_request_counts_what_it_ran_again() -> None:
    engine = make_engine(num_blocks=6, prefix_caching=False)
    old, young = (make_request(name, [int(name)] * 10, max_tokens=9) for name in ("1", "2"))
    engine.add(old)
    engine.add(young)

    run(engine)

    assert (old.num_preemptions, young.num_preemptions) == (0, 1)
    assert old.num_run == 10 + 8
    assert young.num_run > 10 + 8
    assert young.output == echo_output(young.prompt, 9, VOCAB)


def adopt_elsewhere(
    source: Engine, target: Engine, request: Request, before_finish: Callable[[], None]
) -> Request:
    """Prefill on `source`, copy the KV into a lease of `target`, and go on there."""
    lease_out = Holder(HolderKind.LEASE, "out")
    lease_in = Holder(HolderKind.LEASE, "in")
    num_blocks = source.pool.layout.num_blocks_for(len(request.prompt))

    def share(layer: int, chunks: Sequence[ScheduledChunk]) -> None:
        for chunk in chunks:
            num_computed = chunk.request.num_computed + chunk.num_tokens
            is_whole = num_computed == len(request.prompt)
            count = num_blocks if is_whole else num_computed // BLOCK_SIZE
            source.pool.share(chunk.request.holder, lease_out, count)

    prefilled = make_request(request.request_id, request.prompt, max_new_tokens=1)
    source.add(prefilled)
    run(source, StepHooks(on_layer=share))
    before_finish()
    num_cached = target.pool.reserve(lease_in, request.prompt, request.salt)
    assert num_cached is not None
    for index in range(num_cached // BLOCK_SIZE, num_blocks):
        for layer in range(2):
            target.pool.write(lease_in, index, layer, source.pool.view(lease_out, index, layer))
    source.pool.release(lease_out)
    request.append(prefilled.output[0])
    target.adopt(request, lease_in)
    return prefilled


@pytest.mark.parametrize("prompt_len", [1, 4, 7, 8, 30])
def test_a_request_prefilled_elsewhere_goes_on_as_if_it_had_never_moved(prompt_len: int) -> None:
    source = make_engine(scheduler=SchedulerConfig(prefill_chunk=7))
    target = make_engine()
    target.add(make_request("before", range(6)))  # so that part of the prompt is cached there
    run(target)
    request = make_request("moved", range(prompt_len), max_tokens=20)

    def others_come_and_go() -> None:
        source.add(make_request("other", range(100, 160)))
        run(source)

    adopt_elsewhere(source, target, request, others_come_and_go)
    run(target)

    assert request.output == echo_output(range(prompt_len), 20, VOCAB)
    assert request.num_run == 19  # none of them of the prompt
    assert source.pool.num_in_use == target.pool.num_in_use == 0


def test_an_adopted_prompt_is_in_the_prefix_cache_at_once() -> None:
    source, target = make_engine(), make_engine()
    adopt_elsewhere(source, target, make_request("moved"), lambda: None)
    again = make_request("again")

    target.add(again)
    run(target)

    assert again.num_cached == 8


def test_a_lease_too_short_is_not_adopted_and_keeps_its_blocks() -> None:
    engine, lease = make_engine(), Holder(HolderKind.LEASE, "short")
    engine.pool.reserve(lease, range(8), b"")

    with pytest.raises(ValueError, match="no blocks for 11"):
        engine.adopt(make_request(output=[1]), lease)

    assert len(engine.pool.table(lease)) == 2
    assert not engine.has_work


def test_a_continuation_goes_on_where_the_first_attempt_stopped() -> None:
    expected = echo_output(range(11), 8, VOCAB)
    engine, request = make_engine(), make_request(output=expected[:3], max_tokens=8)
    engine.add(request)

    reports = run(engine)

    assert request.output == expected
    assert len(reports) == request.num_sampled == 5


def test_an_end_of_sequence_token_ends_the_output() -> None:
    expected = echo_output(range(11), 8, VOCAB)
    end = expected.index(expected[4])
    engine, request = make_engine(eos_token_ids=(expected[4],)), make_request()
    engine.add(request)

    last = run(engine)[-1].outputs[0]

    assert request.output == expected[: end + 1]
    assert last.finish_reason is FinishReason.STOP


def test_an_ignored_end_of_sequence_token_ends_nothing() -> None:
    expected = echo_output(range(11), 8, VOCAB)
    engine = make_engine(eos_token_ids=(expected[4],))
    request = make_request(ignore_eos=True)
    engine.add(request)

    assert run(engine)[-1].outputs[0].finish_reason is FinishReason.LENGTH
    assert request.output == expected


def test_a_stop_token_ends_the_output() -> None:
    expected = echo_output(range(11), 8, VOCAB)
    engine, request = make_engine(), make_request(stop_token_ids=(expected[2],), ignore_eos=True)
    engine.add(request)

    assert run(engine)[-1].outputs[0].finish_reason is FinishReason.STOP
    assert request.output == expected[: expected.index(expected[2]) + 1]


def test_behind_the_last_token_a_grammar_is_asked_nothing_more() -> None:
    """Not at the end of the sentence, nor at that of the output."""
    expected = echo_output(range(11), 8, VOCAB)
    engine = make_engine(eos_token_ids=(expected[4],))
    ended, cut = AnyToken(), AnyToken()
    for name, matcher, max_tokens in (("ended", ended, 8), ("cut", cut, 3)):
        request = make_request(name, grammar=LETTERS, ignore_eos=True, max_tokens=max_tokens)
        request.matcher = matcher
        engine.add(request)

    reasons = {
        output.request.request_id: output.finish_reason
        for report in run(engine)
        for output in report.outputs
    }

    assert reasons == {"ended": FinishReason.STOP, "cut": FinishReason.LENGTH}
    assert ended.accepted == expected[: expected.index(expected[4])]
    assert cut.accepted == expected[:2]


def test_no_output_ends_before_its_minimum() -> None:
    first = echo_output(range(11), 1, VOCAB)[0]
    engine, request = make_engine(eos_token_ids=(first,)), make_request(min_tokens=5)
    engine.add(request)

    run(engine)

    assert len(request.output) >= 5
    assert first not in request.output[:5]


def test_the_own_limit_of_a_prefill_replica_is_no_reason_for_the_client() -> None:
    engine, request = make_engine(), make_request(max_new_tokens=1)
    engine.add(request)

    (output,) = run(engine)[-1].outputs

    assert (output.is_finished, output.finish_reason) == (True, None)
    assert engine.pool.num_in_use == 0


def test_a_single_token_that_ends_the_output_says_so_on_a_prefill_replica_too() -> None:
    engine, request = make_engine(), make_request(max_new_tokens=1, max_tokens=1)
    engine.add(request)

    assert run(engine)[-1].outputs[0].finish_reason is FinishReason.LENGTH


def test_an_output_ends_where_the_pool_does() -> None:
    engine, request = make_engine(num_blocks=4), make_request(max_tokens=100)
    engine.add(request)

    assert run(engine)[-1].outputs[0].finish_reason is FinishReason.LENGTH
    assert len(request.tokens) == engine.max_model_len == 16
