"""POST /v1/score, compatible with vLLM, and /v1/rerank, compatible with Jina, Cohere and vLLM."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request

from baton.core.errors import InvalidRequest
from baton.core.messages import Pooling
from baton.gateway.http.scoring.pooled_body import PooledBody, PooledUsage, order_of
from baton.gateway.http.sending.awaited_response import AwaitedResponse
from baton.gateway.http.unknown_fields import read_known
from baton.gateway.requests.gateway import Gateway
from baton.gateway.requests.pooling.pooled import MAX_INPUTS
from baton.gateway.requests.pooling.scoring import ScoreRequest, Side, score

Texts = str | list[str]


class PairsBody(PooledBody, kw_only=True, forbid_unknown_fields=True):
    instruction: Annotated[
        str | None,
        Meta(description="What is asked of the pairs, where the model's template has a place."),
    ] = None
    pooling: Annotated[
        Literal["mean", "last"] | None,
        Meta(description="Baton's: compare hidden states, pooled so, of whatever model."),
    ] = None


class ScoreBody(PairsBody, kw_only=True, forbid_unknown_fields=True):
    """One text and several, or as many of both."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Annotated[Texts | None, Meta(description="vLLM's later name of `text_1`.")] = None
    documents: Annotated[Texts | None, Meta(description="vLLM's later name of `text_2`.")] = None


class ScoreEntry(msgspec.Struct, kw_only=True):
    index: int
    object: Literal["score"] = "score"
    score: float


class ScoreAnswer(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[ScoreEntry]
    usage: PooledUsage


class RerankDocument(msgspec.Struct, kw_only=True):
    text: str


class RerankBody(PairsBody, kw_only=True, forbid_unknown_fields=True):
    query: str
    documents: list[str | RerankDocument]
    top_n: Annotated[
        int | None,
        Meta(description="So many of the best; 0: all.", extra_json_schema={"minimum": 0}),
    ] = None
    max_tokens_per_doc: Annotated[
        int | None,
        Meta(
            description="Cohere's: so many tokens of a document are read.",
            extra_json_schema={"minimum": 1},
        ),
    ] = None
    return_documents: Annotated[
        bool | None, Meta(description="Jina's and Cohere's. True by default.")
    ] = None


class RerankEntry(msgspec.Struct, kw_only=True, omit_defaults=True):
    index: int
    """The document's index in the request."""
    relevance_score: float
    document: RerankDocument | None = None


class RerankAnswer(msgspec.Struct, kw_only=True):
    id: str
    model: str
    results: list[RerankEntry]
    """Best first."""
    usage: PooledUsage


class ScoresApi:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def score(self, request: Request) -> AwaitedResponse:
        gateway = self._gateway
        body = await read_known(request, gateway.config, ScoreBody)
        adapter = gateway.check_model(body.model, request.state.caller)
        first = _side(("text_1", body.text_1), ("queries", body.queries))
        second = _side(("text_2", body.text_2), ("documents", body.documents))
        return AwaitedResponse(self._scored(_order(request, body, adapter, first, second)))

    async def rerank(self, request: Request) -> AwaitedResponse:
        gateway = self._gateway
        body = await read_known(request, gateway.config, RerankBody)
        adapter = gateway.check_model(body.model, request.state.caller)
        if body.top_n is not None and body.top_n < 0:
            raise InvalidRequest(f"top_n must be at least 0; got {body.top_n}", field="top_n")
        texts = tuple(each if isinstance(each, str) else each.text for each in body.documents)
        query = Side(texts=(body.query,), field="query", is_list=False)
        documents = Side(texts=await self._read(texts, body), field="documents", is_list=True)
        return AwaitedResponse(
            self._ranked(_order(request, body, adapter, query, documents), body, texts)
        )

    async def _read(self, texts: tuple[str, ...], body: RerankBody) -> tuple[str, ...]:
        """The documents, cut to `max_tokens_per_doc`. Raises InvalidRequest."""
        limit = body.max_tokens_per_doc
        if limit is None or len(texts) > MAX_INPUTS:
            return texts
        if limit < 1:
            raise InvalidRequest(
                f"max_tokens_per_doc must be at least 1; got {limit}", field="max_tokens_per_doc"
            )
        read = []
        for text in texts:
            read.append(await self._gateway.beginning(text, limit))
            await asyncio.sleep(0)  # many texts take long: let other streams run in between
        return tuple(read)

    async def _scored(self, order: ScoreRequest) -> ScoreAnswer:
        found = await score(self._gateway, order)
        num_tokens = found.usage.prompt_tokens
        return ScoreAnswer(
            id=f"score-{order.asked.request_id}",
            created=int(time.time()),
            model=self._gateway.model.named(order.asked.adapter),
            data=[ScoreEntry(index=i, score=value) for i, value in enumerate(found.scores)],
            usage=PooledUsage(prompt_tokens=num_tokens, total_tokens=num_tokens),
        )

    async def _ranked(
        self, order: ScoreRequest, body: RerankBody, texts: tuple[str, ...]
    ) -> RerankAnswer:
        found = await score(self._gateway, order)
        num_tokens = found.usage.prompt_tokens
        best = sorted(range(len(found.scores)), key=lambda i: -found.scores[i])
        shows = body.return_documents is not False
        return RerankAnswer(
            id=f"rerank-{order.asked.request_id}",
            model=self._gateway.model.named(order.asked.adapter),
            results=[
                RerankEntry(
                    index=i,
                    relevance_score=found.scores[i],
                    document=RerankDocument(text=texts[i]) if shows else None,
                )
                for i in best[: body.top_n or None]
            ],
            usage=PooledUsage(prompt_tokens=num_tokens, total_tokens=num_tokens),
        )


def _side(*named: tuple[str, Texts | None]) -> Side:
    """Raises InvalidRequest unless one of the names is there."""
    given = [(name, texts) for name, texts in named if texts is not None]
    if not given:
        raise InvalidRequest(f"{named[0][0]} is missing", field=named[0][0])
    if len(given) > 1:
        names = " and ".join(name for name, _ in given)
        raise InvalidRequest(f"{names} are the same; leave one out", field=given[1][0])
    name, texts = given[0]
    is_list = not isinstance(texts, str)
    return Side(texts=tuple(texts) if is_list else (str(texts),), field=name, is_list=is_list)


def _order(
    request: Request, body: PairsBody, adapter: str, first: Side, second: Side
) -> ScoreRequest:
    return ScoreRequest(
        first=first,
        second=second,
        asked=order_of(request, body, adapter),
        pooling=Pooling(body.pooling) if body.pooling else None,
        instruction=body.instruction,
        is_activated=body.is_activated,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
    )
