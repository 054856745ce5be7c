"""The methods Tokenize, Detokenize and Embed."""

from __future__ import annotations

from dataclasses import replace

from baton.core.errors import InvalidRequest
from baton.core.messages import Pooling
from baton.gateway.access.api_keys import Caller
from baton.gateway.chat.conversation import encode_chat, for_model, render_chat
from baton.gateway.grpc.answers import usage
from baton.gateway.grpc.chat import conversation_of
from baton.gateway.grpc.prompts import prompt_values
from baton.gateway.requests.call_span import named_call
from baton.gateway.requests.gateway import Gateway
from baton.gateway.requests.pooling.embedding import EmbeddingRequest, embed, pooling_of
from baton.gateway.requests.pooling.pooled import MAX_INPUTS
from baton.gateway.requests.prompts import read_prompts
from baton.gateway.requests.sampling_options import check_tokens
from baton.proto import inference_pb2 as pb

POOLINGS = {
    pb.Pooling.POOLING_UNSPECIFIED: None,
    pb.Pooling.POOLING_MEAN: Pooling.MEAN,
    pb.Pooling.POOLING_LAST: Pooling.LAST,
}


async def answer_tokenize(
    gateway: Gateway, request: pb.TokenizeRequest, caller: Caller
) -> pb.TokenizeResponse:
    """Raises InvalidRequest, as the others do."""
    gateway.check_model(request.model, caller)
    match request.WhichOneof("input"):
        case "text":
            adds = not request.HasField("add_special_tokens") or request.add_special_tokens
            tokens = await gateway.encode(
                request.text, add_special_tokens=adds, prompt_field="text"
            )
        case "chat":
            tokens = await _chat_tokens(gateway, request)
        case _:
            raise InvalidRequest("one of text and chat is needed", field="input")
    return pb.TokenizeResponse(
        ids=tokens,
        tokens=[gateway.model.tokenizer.token_bytes(token) for token in tokens],
        max_model_len=gateway.max_model_len,
    )


async def _chat_tokens(gateway: Gateway, request: pb.TokenizeRequest) -> tuple[int, ...]:
    conversation = for_model(gateway, conversation_of(request.chat, gateway.model))
    if request.HasField("add_special_tokens"):
        conversation = replace(conversation, adds_special_tokens=request.add_special_tokens)
    text = render_chat(conversation)
    return await encode_chat(gateway, conversation, text)


async def answer_detokenize(
    gateway: Gateway, request: pb.DetokenizeRequest, caller: Caller
) -> pb.DetokenizeResponse:
    gateway.check_model(request.model, caller)
    check_tokens(request.ids, gateway.model.vocab_size, field="ids")
    return pb.DetokenizeResponse(text=gateway.model.tokenizer.decode(request.ids))


async def answer_embed(
    gateway: Gateway, request: pb.EmbedRequest, caller: Caller, time_left_s: float | None
) -> pb.EmbedResponse:
    adapter = gateway.check_model(request.model, caller)
    if request.pooling not in POOLINGS:
        raise InvalidRequest(f"pooling {request.pooling} is not known here", field="pooling")
    order = EmbeddingRequest(
        request_id=named_call(caller.call, request.request_id),
        inputs=await read_prompts(
            gateway,
            prompt_values(request.inputs, "inputs"),
            "inputs",
            adds_special=True,
            max_prompts=MAX_INPUTS,
        ),
        pooling=pooling_of(gateway, POOLINGS[request.pooling]),
        is_normalized=not request.HasField("normalize") or request.normalize,
        dimensions=request.dimensions if request.HasField("dimensions") else None,
        priority=request.priority or None,
        adapter=adapter,
        cache_salt=request.cache_salt,
        caller=caller,
        time_left_s=time_left_s,
    )
    found = await embed(gateway, order)
    return pb.EmbedResponse(
        request_id=order.request_id,
        model=gateway.model.named(adapter),
        embeddings=[pb.Embedding(values=vector) for vector in found.vectors],
        usage=usage(found.usage),
    )
