"""The public port's endpoints, for the OpenAPI document: paths, bodies and answers.

`app.py` has the routes; `document.py` generates the OpenAPI document and its page from this.
"""

from __future__ import annotations

from baton.gateway.http.batching.endpoints import BATCH_PATHS
from baton.gateway.http.completions.answers import ChatAnswer, CompletionAnswer
from baton.gateway.http.completions.schemas import ChatBody, CompletionBody
from baton.gateway.http.decisions import ExplainedRequest
from baton.gateway.http.edge import CLASSIFY_PATHS, POOLING_PATHS, RERANK_PATHS, SCORE_PATHS
from baton.gateway.http.embeddings import (
    EmbeddingBody,
    EmbeddingListAnswer,
    PoolingAnswer,
    PoolingBody,
)
from baton.gateway.http.estimates import EstimateAnswer
from baton.gateway.http.messages.answer import MessageAnswer, TokenCountAnswer
from baton.gateway.http.messages.schemas import MessagesBody
from baton.gateway.http.models import ModelAnswer, ModelListAnswer
from baton.gateway.http.openapi.admin_endpoints import OPERATIONS, PAGES
from baton.gateway.http.openapi.endpoint import Endpoint
from baton.gateway.http.responses.answer import (
    DeletedAnswer,
    InputTokensAnswer,
    ItemListAnswer,
    ResponseAnswer,
)
from baton.gateway.http.responses.schemas import ResponsesBody
from baton.gateway.http.scoring.classify import ClassifyAnswer, ClassifyBody
from baton.gateway.http.scoring.scores import RerankAnswer, RerankBody, ScoreAnswer, ScoreBody
from baton.gateway.http.status_pages import (
    HealthAnswer,
    ReadyAnswer,
)
from baton.gateway.http.tokenization import (
    DetokenizeAnswer,
    DetokenizeBody,
    TokenizeAnswer,
    TokenizeBody,
)

TEXT, CHAT, MODELS, STREAMS = "Text", "Chat", "Models", "Resumable streams"


HEADERS = {
    "x-request-id": "The name of the request, in the answer's headers as well; drawn if missing.",
    "x-session-id": "Requests of one conversation; goes before `prompt_cache_key`.",
    "x-gateway-inference-objective": "A class of gateway.slo_classes: what the request is to see.",
    "x-slo-ttft-ms": "The first token is wanted within so many milliseconds; before the class's.",
    "x-slo-tpot-ms": "Further tokens are wanted so many milliseconds apart, on the average.",
    "x-baton-receipt": "`1` adds a `baton` object: where the request ran and what it cost.",
    "x-baton-resumable": "`1` keeps the stream for a while when the connection breaks.",
    "anthropic-version": "Accepted; there is one version.",
    "last-event-id": "The id of the last event received: the answer is the rest of its stream.",
}
OF_OBJECTIVES = ("x-gateway-inference-objective", "x-slo-ttft-ms", "x-slo-tpot-ms")
OF_STREAMS = (
    "x-session-id",
    *OF_OBJECTIVES,
    "x-baton-receipt",
    "x-baton-resumable",
    "last-event-id",
)
OF_MESSAGES = (*OF_STREAMS, "anthropic-version")
HELLO = [{"role": "user", "content": "Say hello."}]

ENDPOINTS = (
    Endpoint(
        path="/v1/completions",
        method="post",
        tag=TEXT,
        summary="Continue one or several prompts",
        details=(
            "`prompt` is a text, a list of token ids, or a list of either; choice `i` belongs to "
            "prompt `i // n`. The choices of a prompt share its blocks of the KV cache: the first "
            "one starts, and the others once the prompt is cached where that one runs."
        ),
        body=CompletionBody,
        answer=CompletionAnswer,
        is_streamed=True,
        headers=OF_STREAMS,
        example={"prompt": "Once upon a time", "max_tokens": 32},
    ),
    Endpoint(
        path="/v1/chat/completions",
        method="post",
        tag=CHAT,
        summary="Answer a conversation",
        details=(
            "Messages become a prompt through the model's own chat template; reasoning and calls "
            "of tools are split off the answer."
        ),
        body=ChatBody,
        answer=ChatAnswer,
        is_streamed=True,
        headers=OF_STREAMS,
        example={"messages": HELLO, "max_tokens": 32},
    ),
    Endpoint(
        path="/v1/responses",
        method="post",
        tag=CHAT,
        summary="Answer a conversation, in the shape of OpenAI's Responses API",
        details=(
            "A response is kept, unless `store` is false: another turn goes on from it with "
            "`previous_response_id`, at any gateway of the same storage. With `background` it is "
            "answered at once, as `in_progress`, and asked for by its id."
        ),
        body=ResponsesBody,
        answer=ResponseAnswer,
        is_streamed=True,
        headers=OF_STREAMS,
        example={"input": "Say hello.", "max_output_tokens": 32},
    ),
    Endpoint(
        path="/v1/responses/input_tokens",
        method="post",
        tag=CHAT,
        summary="Count the tokens of such a conversation",
        details="Those of the prompt that `/v1/responses` would make of the same body.",
        body=ResponsesBody,
        answer=InputTokensAnswer,
        example={"input": "Say hello."},
    ),
    Endpoint(
        path="/v1/responses/{response_id}",
        tag=CHAT,
        summary="A response that is kept",
        answer=ResponseAnswer,
    ),
    Endpoint(
        path="/v1/responses/{response_id}",
        method="delete",
        tag=CHAT,
        summary="Delete a response",
        details="Later turns keep what they took from it.",
        answer=DeletedAnswer,
    ),
    Endpoint(
        path="/v1/responses/{response_id}/input_items",
        tag=CHAT,
        summary="What a kept response was given",
        details=(
            "Items of its `input`, behind those that it took from `previous_response_id`; the last "
            "first, unless `order` is `asc`. `limit` (20, at most 100) and `after` turn pages."
        ),
        answer=ItemListAnswer,
    ),
    Endpoint(
        path="/v1/responses/{response_id}/cancel",
        method="post",
        tag=CHAT,
        summary="Cancel a response that runs in the background",
        answer=ResponseAnswer,
    ),
    Endpoint(
        path="/v1/messages",
        method="post",
        tag=CHAT,
        summary="Answer a conversation, in the shape of Anthropic's Messages API",
        details=(
            "The same conversations as `/v1/chat/completions`; tools, thinking and cache points in "
            "Anthropic's words. The key may be in `x-api-key`, errors have Anthropic's shape, and "
            "answers carry `request-id` as well."
        ),
        body=MessagesBody,
        answer=MessageAnswer,
        is_streamed=True,
        headers=OF_MESSAGES,
        example={"messages": HELLO, "max_tokens": 32},
    ),
    Endpoint(
        path="/v1/messages/count_tokens",
        method="post",
        tag=CHAT,
        summary="Count the tokens of such a conversation",
        details="Those of the prompt that `/v1/messages` would make of the same body.",
        body=MessagesBody,
        answer=TokenCountAnswer,
        headers=("anthropic-version",),
        example={"messages": HELLO},
    ),
    Endpoint(
        path="/v1/embeddings",
        method="post",
        tag=TEXT,
        summary="Turn texts into vectors",
        details=(
            "The hidden states after the last norm, their mean over the input's tokens or the "
            "last one's, as the model's authors say, scaled to length 1."
        ),
        body=EmbeddingBody,
        answer=EmbeddingListAnswer,
        example={"input": ["Hello", "world"]},
    ),
    *(
        Endpoint(
            path=path,
            method="post",
            tag=TEXT,
            summary="Vectors of texts, or probabilities of labels, whichever the model has",
            details="As `/v1/embeddings` and `/v1/classify`, in the shape of vLLM's `/pooling`.",
            body=PoolingBody,
            answer=PoolingAnswer,
            example={"input": ["Hello", "world"]},
        )
        for path in POOLING_PATHS
    ),
    *(
        Endpoint(
            path=path,
            method="post",
            tag=TEXT,
            summary="Sort texts by how relevant they are to a query",
            details=(
                "By a classifier with one label, or yes-and-no tokens, that reads query and "
                "document together; or by the cosine of their embeddings."
            ),
            body=RerankBody,
            answer=RerankAnswer,
            example={"query": "Who reads JSON?", "documents": ["json", "math"], "top_n": 1},
        )
        for path in RERANK_PATHS
    ),
    *(
        Endpoint(
            path=path,
            method="post",
            tag=TEXT,
            summary="How alike, or how relevant to each other, two texts are",
            details="As `/v1/rerank`, of one text and several, or of as many of both.",
            body=ScoreBody,
            answer=ScoreAnswer,
            example={"text_1": "Who reads JSON?", "text_2": ["json", "math"]},
        )
        for path in SCORE_PATHS
    ),
    *(
        Endpoint(
            path=path,
            method="post",
            tag=TEXT,
            summary="The probabilities of a classifier's labels",
            body=ClassifyBody,
            answer=ClassifyAnswer,
            example={"input": ["I like it", "I do not"]},
        )
        for path in CLASSIFY_PATHS
    ),
    *(
        Endpoint(
            path=f"{prefix}/tokenize",
            method="post",
            tag=TEXT,
            summary="Text, or a conversation, to tokens",
            body=TokenizeBody,
            answer=TokenizeAnswer,
            example={"prompt": "Hello world", "return_token_strs": True},
        )
        for prefix in ("/v1", "")
    ),
    *(
        Endpoint(
            path=f"{prefix}/detokenize",
            method="post",
            tag=TEXT,
            summary="Tokens to text",
            body=DetokenizeBody,
            answer=DetokenizeAnswer,
            example={"tokens": [1, 2, 3]},
        )
        for prefix in ("/v1", "")
    ),
    Endpoint(
        path="/v1/estimate",
        method="post",
        tag=TEXT,
        summary="What a request would see if it came now",
        details=(
            "Takes the body of a chat, or of a completion with one prompt, and runs nothing: when "
            "its first token would come, what is between two tokens, each as an interval that 90 % "
            "should fall into, and how much of its prompt is cached."
        ),
        body=ChatBody,
        answer=EstimateAnswer,
        example={"messages": HELLO, "max_tokens": 32},
    ),
    Endpoint(
        path="/v1/requests/{request_id}",
        tag=TEXT,
        summary="Why a request ran where it ran",
        details=(
            "By its `x-request-id` or the id of its answer, for as long as the gateway that served "
            "it keeps that, with the key that it was sent with, or one of the same tenant's."
        ),
        answer=ExplainedRequest,
    ),
    Endpoint(
        path="/v1/models",
        tag=MODELS,
        summary="The model served, and its adapters",
        details="In Anthropic's shape for who sends its header `anthropic-version`.",
        answer=ModelListAnswer,
    ),
    Endpoint(
        path="/v1/models/{model_id}",
        tag=MODELS,
        summary="The same",
        answer=ModelAnswer,
    ),
    Endpoint(
        path="/v1/streams",
        tag=STREAMS,
        summary="The rest of a stream",
        details="204 if the last event has been received.",
        media="text/event-stream",
        headers=("last-event-id",),
    ),
    Endpoint(
        path="/v1/streams/{stream_id}",
        method="delete",
        tag=STREAMS,
        summary="Stop a stream",
        status=204,
    ),
    Endpoint(path="/health", tag=OPERATIONS, summary="Alive", answer=HealthAnswer),
    Endpoint(
        path="/ready",
        tag=OPERATIONS,
        summary="Can take requests",
        details="503 while no decode replica takes requests, while a new gateway learns what "
        "replicas have cached, and while draining.",
        answer=ReadyAnswer,
        others={503: ReadyAnswer},
    ),
    Endpoint(
        path="/-/healthz",
        tag=OPERATIONS,
        summary="For Ray Serve's probes",
        media="text/plain",
        others={503: str},
    ),
    Endpoint(path="/-/routes", tag=OPERATIONS, summary="For Ray Serve", answer=dict[str, str]),
    *BATCH_PATHS,
    *PAGES,
)
"""Endpoints of the public port."""
