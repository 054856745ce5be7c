"""Both clients against a real gateway."""

from __future__ import annotations

import asyncio

import pytest
from tests.client.both_clients import KINDS, client_of
from tests.client.cut_proxy import cut_proxy
from tests.gateway.scripted import MODEL, Script, serving, soon, text_of, tokens_of

from baton.client import errors
from baton.client.async_client import AsyncBatonClient
from baton.client.retry import RetryPolicy
from baton.core.errors import Overloaded
from baton.gateway.access.key_entry import digest_of

TEXT = "the quick brown fox jumps over the lazy dog"
QUICK = RetryPolicy(max_attempts=3, first_delay_s=0.001, max_delay_s=0.002)
OF_ANOTHER = f"sha256:{digest_of('other').hex()} models=another"
HI = [{"role": "user", "content": "x"}]

both = pytest.mark.parametrize("kind", KINDS)


@both
async def test_the_whole_surface(kind: str) -> None:
    script = Script(tokens=tokens_of("the fox"), ends_with_eos=True)
    async with (
        serving(script, api_keys=frozenset({"key"})) as gateway,
        client_of(kind, gateway.grpc_target, api_key="key") as client,
    ):
        result = await client.generate("Hello", logprobs=1, return_token_ids=True)
        several = await client.generate(["Hello", "you"], n=2)
        chat = await client.chat(HI)
        async with client.stream_chat(HI) as stream:
            streamed = "".join([delta.text async for delta in stream])
        tokens = await client.tokenize("the fox", add_special_tokens=False)
        text = await client.detokenize(tokens.ids)
        models = await client.models()
        estimates = [await client.estimate(asked, max_tokens=9) for asked in ("Hello", [5, 6], HI)]
        is_healthy = await client.health()

    assert result.text == chat.text == streamed == "the fox"
    assert list(result.token_ids[:-1]) == tokens_of("the fox")
    assert len(result.logprobs) == len(result.token_ids)
    assert [choice.text for choice in several.choices] == ["the fox"] * 4
    assert (list(tokens.ids), text) == (tokens_of("the fox"), "the fox")
    assert [model.id for model in models] == [MODEL]
    assert [(one.prefill_replica, one.max_output_tokens) for one in estimates] == [("p0", 9)] * 3
    assert estimates[1].prompt_tokens == 2
    assert (estimates[0].ttft_s.high, estimates[0].itl_s) == (2.0, None)
    assert is_healthy


@both
async def test_cache_points_reach_the_dispatcher_and_usage_tells_what_they_wrote(kind: str) -> None:
    async with (
        serving(Script(num_cached=2, num_written=1)) as gateway,
        client_of(kind, gateway.grpc_target) as client,
    ):
        chat = await client.chat([{**HI[0], "cache_control": {"type": "ephemeral", "ttl": "1h"}}])
        (point,) = gateway.dispatcher.generations[-1].cache_points
        await client.generate("Hello", cache_control={"ttl": "5m"})
        (last,) = gateway.dispatcher.generations[-1].cache_points
        with pytest.raises(errors.InvalidRequest) as refused:
            await client.generate("Hello", cache_control={"ttl": "1d"})

    assert (point.ttl_s, last.ttl_s) == (3600.0, 300.0)
    assert (chat.usage.cached_tokens, chat.usage.cache_write_tokens) == (2, 1)
    assert (chat.receipt.cached_tokens, chat.receipt.cache_write_tokens) == (2, 1)
    assert refused.value.field == "cache_control.ttl"


@both
async def test_errors_keep_their_kind_and_field(kind: str) -> None:
    async with (
        serving(api_keys=frozenset({"key", OF_ANOTHER})) as gateway,
        client_of(kind, gateway.grpc_target, api_key="key") as client,
        client_of(kind, gateway.grpc_target, api_key="other") as limited,
        client_of(kind, gateway.grpc_target) as stranger,
    ):
        with pytest.raises(errors.InvalidRequest) as invalid:
            await client.generate("Hello", top_p=2)
        with pytest.raises(errors.ModelNotFound):
            await client.generate("Hello", model="another")
        with pytest.raises(errors.Unauthenticated):
            await stranger.generate("Hello")
        with pytest.raises(errors.Forbidden) as forbidden:
            await limited.generate("Hello")

    assert invalid.value.field == "sampling.top_p"
    assert (forbidden.value.field, forbidden.value.reason) == ("model", "MODEL_NOT_FOUND")


@both
async def test_overload_keeps_its_advice(kind: str) -> None:
    full = Overloaded("full", retry_after_s=0.001)
    async with (
        serving(Script(start_error=full)) as gateway,
        client_of(kind, gateway.grpc_target, retry=QUICK) as client,
    ):
        with pytest.raises(errors.Overloaded) as caught:
            await client.generate("Hello")

    assert caught.value.retry_after_s == 0.001
    assert len(gateway.dispatcher.generations) == 3


@both
@pytest.mark.parametrize("is_chat", [False, True])
async def test_a_stream_outlives_its_connections(kind: str, is_chat: bool) -> None:
    script = Script(tokens=tokens_of(TEXT), ends_with_eos=True, stalls_after=2)
    async with (
        serving(script) as gateway,
        cut_proxy(gateway.server.grpc_port) as proxy,
        client_of(kind, proxy.target) as client,
    ):
        stream = client.stream_chat(HI) if is_chat else client.stream("Hello")
        deltas = []
        async with stream:
            async for delta in stream:
                deltas.append(delta)
                if not script.continues.is_set():
                    proxy.cut()
                    script.continues.set()

    assert "".join(delta.text for delta in deltas) == TEXT
    assert deltas[-1].usage is not None
    assert len(gateway.dispatcher.generations) == 1
    assert proxy.num_connections > 1


@both
async def test_a_stream_that_is_not_resumable_ends_with_its_connection(kind: str) -> None:
    async with (
        serving(Script(tokens=tokens_of(TEXT), stalls_after=3)) as gateway,
        cut_proxy(gateway.server.grpc_port) as proxy,
        client_of(kind, proxy.target, resumable=False) as client,
        client.stream("Hello") as stream,
    ):
        await anext(stream)
        proxy.cut()
        with pytest.raises(errors.Unavailable):
            async for _ in stream:
                pass
        await soon(gateway.dispatcher.stopped)


@both
async def test_leaving_a_stream_stops_its_generation_at_once(kind: str) -> None:
    async with (
        serving(Script(tokens=tokens_of(TEXT), stalls_after=3)) as gateway,
        client_of(kind, gateway.grpc_target) as client,
    ):
        text, begun = "", text_of(tokens_of(TEXT)[:3])
        async with client.stream("Hello") as stream:
            while text != begun:
                text += (await anext(stream)).text
        await soon(gateway.dispatcher.stopped)

    assert gateway.dispatcher.stops == [3]


async def test_a_task_that_is_cancelled_stops_its_generation() -> None:
    has_begun = asyncio.Event()

    async def read_all(client: AsyncBatonClient) -> None:
        async with client.stream("Hello") as stream:
            async for _ in stream:
                has_begun.set()

    async with (
        serving(Script(tokens=tokens_of(TEXT), stalls_after=3)) as gateway,
        AsyncBatonClient(gateway.grpc_target) as client,
    ):
        reading = asyncio.create_task(read_all(client))
        await soon(has_begun)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await soon(gateway.dispatcher.stopped)


@both
async def test_a_deadline_stops_the_generation(kind: str) -> None:
    async with (
        serving(Script(tokens=tokens_of(TEXT), stalls_after=3)) as gateway,
        client_of(kind, gateway.grpc_target) as client,
    ):
        timeout_s = 0.2
        while not gateway.dispatcher.generations:  # a busy machine may not have begun by then
            with pytest.raises(errors.DeadlineExceeded):
                await client.generate("Hello", timeout_s=timeout_s)
            timeout_s *= 2
        await soon(gateway.dispatcher.stopped)
