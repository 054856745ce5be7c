"""A dispatcher that follows a script, and a gateway on free ports that uses it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from baton.core.chaos import Chaos
from baton.core.clock import Clock, monotonic
from baton.core.errors import DeadlineExceeded, InvalidRequest
from baton.core.ids import ReplicaId
from baton.core.messages import ParkedStream, Receipt, TokenUpdate
from baton.core.metrics import Family, gauge
from baton.core.parking import TakeStream
from baton.core.sampling import FinishReason, TokenLogprob
from baton.gateway.access.config import GatewayConfig
from baton.gateway.requests.generations.generation import DecodeRoom, Estimate, Generation
from baton.gateway.requests.generations.prompt_progress import PromptProgress
from baton.gateway.requests.readiness import Missing, Wanted
from baton.gateway.requests.reporting import SILENT, Reporting
from baton.gateway.server import GatewayServer
from baton.gateway.text.chat_templates import ChatTemplates
from baton.gateway.text.model_files import DEFAULT, SamplingDefaults
from baton.gateway.text.served_model import ServedModel
from baton.gateway.text.tokenizer import TextTokenizer
from baton.platform.observe.listeners import bind_first_free
from baton.router.explain.decisions import Decisions
from baton.router.speeds.prediction_errors import Interval

MODEL = "org/tiny"
BOS, EOS, USER, ASSISTANT = "<s>", "</s>", "<|user|>", "<|assistant|>"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('system comes first') }}"
    "{% endif %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@cache
def tokenizer_json() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[BOS, EOS, USER, ASSISTANT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    corpus = ["the quick brown fox jumps over the lazy dog " * 5, "Hello world, how are you? " * 5]
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return tokenizer.to_str()


@cache
def text_tokenizer() -> TextTokenizer:
    return TextTokenizer(tokenizer_json())


def tokens_of(text: str) -> list[int]:
    return list(text_tokenizer().encode(text, add_special_tokens=False))


def text_of(tokens: Sequence[int]) -> str:
    return b"".join(map(text_tokenizer().token_bytes, tokens)).decode()


@cache
def eos_token() -> int:
    return int(json.loads(tokenizer_json())["model"]["vocab"][EOS])


def make_model(
    *, defaults: SamplingDefaults | None = None, template: str | None = TEMPLATE
) -> ServedModel:
    return ServedModel(
        name=MODEL,
        tokenizer=text_tokenizer(),
        chat_templates=ChatTemplates.compile(
            {} if template is None else {DEFAULT: template}, {"bos_token": BOS}
        ),
        sampling=defaults or SamplingDefaults(),
        vocab_size=json_vocab_size(),
        context_len=128,
        created=1_700_000_000,
    )


@cache
def json_vocab_size() -> int:
    return len(json.loads(tokenizer_json())["model"]["vocab"])


def write_model_folder(folder: Path, **tokenizer_config: Any) -> None:
    (folder / "config.json").write_text(
        json.dumps({"vocab_size": json_vocab_size(), "max_position_embeddings": 128})
    )
    (folder / "tokenizer.json").write_text(tokenizer_json())
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))


@dataclass(kw_only=True)
class Script:
    """How each request goes. The output is `tokens`, or else the prompt over again."""

    tokens: Sequence[int] | None = None
    ends_with_eos: bool = False
    num_per_update: int = 1
    start_error: Exception | None = None
    error: Exception | None = None
    """Raised after `num_before` tokens."""
    num_before: int = 0
    stalls_after: int | None = None
    """Tokens after which nothing more comes, or not before `continues` is set."""
    continues: asyncio.Event = field(default_factory=asyncio.Event)
    starts: asyncio.Event | None = None
    """Starting waits for it."""
    num_cached: int = 0
    num_written: int = 0
    logprob: float = -0.5
    """Of every output token."""


@dataclass
class ScriptedDispatcher:
    script: Script = field(default_factory=Script)
    script_by_choice: dict[int, Script] = field(default_factory=dict)
    """Of choices that go otherwise."""
    max_model_len: int = 100
    ready: bool = True
    parked: ParkedStream | None = None
    """What replicas know of any stream."""
    lacking: tuple[Missing, ...] = ()
    generations: list[Generation] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)
    """By ended generation: the number of delivered tokens."""
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    decisions: Decisions = field(default_factory=lambda: Decisions(0))
    decode_room: DecodeRoom = field(
        default_factory=lambda: DecodeRoom(num_places=64, num_taken=0, num_awaited=0, num_waiting=0)
    )

    def captured(self) -> Iterator[bytes]:
        return iter((b'{"capture": 1}\n',))

    async def estimate(self, generation: Generation) -> Estimate:
        num_tokens = len(generation.prompt)
        return Estimate(
            num_cached_tokens=0,
            num_prefill_tokens=num_tokens,
            computes=ReplicaId("p0"),
            decodes=ReplicaId("d0"),
            wait_s=0.5,
            work_s=num_tokens / 100,
            ttft_s=Interval(low=0.5, middle=1.0, high=2.0),
            itl_s=None,
        )

    def progress(self, generation: Generation) -> PromptProgress | None:
        num_tokens = len(generation.prompt)
        return PromptProgress(state="queued", position=3, total=num_tokens, eta_ms=1500.0)

    def room(self) -> DecodeRoom:
        return self.decode_room

    async def start(self, generation: Generation) -> ScriptedGeneration:
        self.generations.append(generation)
        script = self.script_by_choice.get(generation.sampling.choice, self.script)
        try:
            if script.starts is not None:
                async with _time_limit(generation):
                    await script.starts.wait()
        except asyncio.CancelledError:
            self.stopped.set()
            raise
        if script.start_error is not None:
            raise script.start_error
        return ScriptedGeneration(self, generation, script)

    async def take_stream(self, wanted: TakeStream) -> ParkedStream | None:
        return self.parked

    def leave(self) -> None:
        pass

    def is_ready(self) -> bool:
        return self.ready

    def trouble(self) -> str:
        return "no decode replica takes requests"

    def missing(self, wanted: Wanted) -> tuple[Missing, ...]:
        return () if self.ready else self.lacking

    async def leaks(self) -> dict[str, Any]:
        return {"violations": []}

    async def status(self) -> dict[str, Any]:
        return {"replicas": ["d0"]}

    async def undrain(self, replica_id: str) -> dict[str, Any]:
        return {"replica": replica_id, "role": "decode", "num_open": 0}

    async def flip(self, replica: str, to: str) -> dict[str, Any]:
        return {"replica": replica, "role": "prefill", "num_open": 2}

    async def reset_prefix_cache(self, replica_id: str) -> dict[str, int]:
        return {replica_id or "d0": 3}

    async def drain(self, replica_id: str, *, is_forced: bool) -> dict[str, Any]:
        if replica_id != "d0":
            raise InvalidRequest(f"no replica is called {replica_id!r}", field="replica")
        return {"replica": replica_id, "role": "decode", "num_open": int(is_forced)}

    def metrics(self) -> Iterator[Family]:
        yield gauge("baton_gateway_waiting_requests", "Requests that wait for a place", 3)


def embedding_of(prompt: Sequence[int]) -> tuple[float, ...]:
    """No two orders of tokens have the same."""
    weighted = sum(token * place for place, token in enumerate(prompt, start=1))
    return (3.0, 4.0, float(len(prompt)), float(weighted))


@asynccontextmanager
async def _time_limit(generation: Generation) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(generation.time_left_s):
            yield
    except TimeoutError:
        raise DeadlineExceeded("the request took longer than its time limit") from None


class ScriptedGeneration:
    def __init__(
        self, dispatcher: ScriptedDispatcher, generation: Generation, script: Script
    ) -> None:
        self._dispatcher = dispatcher
        self._generation = generation
        self._script = script
        self._is_stopped = False

    @property
    def receipt(self) -> Receipt:
        return Receipt(
            decode_replica="d0",
            placement="least work",
            prompt_tokens=len(self._generation.prompt),
            cached_tokens=self._script.num_cached,
            cache_write_tokens=self._script.num_written,
            decode_ms=2.5,
            notes=("stopped",) if self._is_stopped else (),
        )

    async def stop(self, num_delivered: int, *, is_finished: bool = False) -> None:
        if not self._is_stopped:
            self._is_stopped = True
            self._dispatcher.stops.append(num_delivered)
            self._dispatcher.stopped.set()

    async def __aiter__(self) -> AsyncIterator[TokenUpdate]:
        script, sampling = self._script, self._generation.sampling
        if self._generation.pooling is not None:
            yield self._embedding()
            return
        tokens = list(self._generation.prompt if script.tokens is None else script.tokens)
        if script.ends_with_eos:
            tokens.append(eos_token())
        is_stopped = script.ends_with_eos and len(tokens) <= sampling.max_tokens
        tokens = tokens[: sampling.max_tokens]
        for start in range(0, len(tokens), script.num_per_update):
            if script.error is not None and start >= script.num_before:
                raise script.error
            if script.stalls_after is not None and start >= script.stalls_after:
                async with _time_limit(self._generation):
                    await script.continues.wait()
            await asyncio.sleep(0)
            part = tuple(tokens[start : start + script.num_per_update])
            is_last = start + script.num_per_update >= len(tokens)
            reason = FinishReason.STOP if is_stopped else FinishReason.LENGTH
            yield TokenUpdate(
                request_id=self._generation.request_id,
                attempt=1,
                tokens=part,
                logprobs=self._logprobs(part),
                prompt_logprobs=() if start else self._prompt_logprobs(),
                finish_reason=reason if is_last else None,
            )

    def _embedding(self) -> TokenUpdate:
        return TokenUpdate(
            request_id=self._generation.request_id,
            attempt=1,
            embedding=embedding_of(self._generation.prompt),
            finish_reason=FinishReason.STOP,
        )

    def _logprobs(self, tokens: Sequence[int]) -> tuple[TokenLogprob, ...]:
        num = self._generation.sampling.num_logprobs
        if num is None:
            return ()
        top = tuple((10 + rank, -1.0 - rank) for rank in range(num))
        return tuple(TokenLogprob(token, self._script.logprob, top) for token in tokens)

    def _prompt_logprobs(self) -> tuple[TokenLogprob, ...]:
        num = self._generation.sampling.num_prompt_logprobs
        if num is None:
            return ()
        top = tuple((20 + rank, -2.0 - rank) for rank in range(num))
        return tuple(TokenLogprob(token, -1.5, top) for token in self._generation.prompt[1:])


@dataclass(frozen=True, kw_only=True)
class Serving:
    server: GatewayServer
    dispatcher: ScriptedDispatcher
    http: httpx.AsyncClient

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.http_port}"

    @property
    def admin_url(self) -> str:
        """Where `admin_port` is among the settings; `http` takes it for what it is."""
        return f"http://127.0.0.1:{self.server.admin_port}"

    @property
    def grpc_target(self) -> str:
        return f"127.0.0.1:{self.server.grpc_port}"

    async def complete(self, **body: Any) -> httpx.Response:
        return await self.http.post("/v1/completions", json={"model": MODEL, **body})

    async def chat(self, text: str = "hi", **body: Any) -> httpx.Response:
        messages = [{"role": "user", "content": text}]
        return await self.http.post(
            "/v1/chat/completions", json={"model": MODEL, "messages": messages, **body}
        )


@asynccontextmanager
async def serving(
    script: Script | None = None,
    *,
    dispatcher: ScriptedDispatcher | None = None,
    model: ServedModel | None = None,
    clock: Clock = monotonic,
    reporting: Reporting = SILENT,
    chaos: Chaos | None = None,
    **config: Any,
) -> AsyncIterator[Serving]:
    dispatcher = dispatcher or ScriptedDispatcher(script or Script())
    settings = GatewayConfig(**{"port": 0, "grpc_port": 0, "admin_port": None, **config})
    server = GatewayServer(
        model=model or make_model(),
        dispatcher=dispatcher,
        config=settings,
        reporting=reporting,
        chaos=chaos,
        clock=clock,
    )
    await server.start()
    if settings.admin_port is not None:
        await server.open_admin(bind_first_free("127.0.0.1", settings.admin_port))
    try:
        url = f"http://127.0.0.1:{server.http_port}"
        async with httpx.AsyncClient(base_url=url, timeout=120) as http:
            yield Serving(server=server, dispatcher=dispatcher, http=http)
    finally:
        await server.stop(grace_s=0)


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The data of all events but [DONE]."""
    lines = [line for line in response.text.split("\n\n") if line]
    data = [line.removeprefix("data: ") for line in lines]
    return [json.loads(item) for item in data if item != "[DONE]"]


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error


async def soon(event: asyncio.Event) -> None:
    """Wait for what must happen; the limit only keeps a failing test from hanging."""
    async with asyncio.timeout(60):
        await event.wait()
