"""The method Estimate: predictions for a request, without running it."""

from __future__ import annotations

from baton.core.errors import InvalidRequest
from baton.gateway.access.api_keys import Caller
from baton.gateway.grpc.chat import chat_order
from baton.gateway.grpc.generate import generate_order
from baton.gateway.requests.completion_request import CompletionRequest
from baton.gateway.requests.gateway import Gateway
from baton.proto import inference_pb2 as pb
from baton.router.speeds.prediction_errors import Interval


async def answer_estimate(
    gateway: Gateway, request: pb.EstimateRequest, caller: Caller
) -> pb.EstimateResponse:
    """Raises InvalidRequest, and Unavailable if no prediction is possible."""
    generation = gateway.prepare(await _order(gateway, request, caller)).first_generation
    estimate = await gateway.dispatcher.estimate(generation)
    return pb.EstimateResponse(
        prompt_tokens=len(generation.prompt),
        cached_tokens=estimate.num_cached_tokens,
        computed_tokens=estimate.num_prefill_tokens,
        max_output_tokens=generation.sampling.max_tokens,
        prefill_replica=estimate.computes,
        decode_replica=estimate.decodes,
        wait_s=estimate.wait_s,
        prefill_s=estimate.work_s,
        ttft_s=_interval(estimate.ttft_s),
        itl_s=None if estimate.itl_s is None else _interval(estimate.itl_s),
    )


async def _order(
    gateway: Gateway, request: pb.EstimateRequest, caller: Caller
) -> CompletionRequest:
    match request.WhichOneof("request"):
        case "chat":
            order, _ = await chat_order(gateway, request.chat, caller, None)
            return order
        case "generate":
            order = await generate_order(gateway, request.generate, caller, None)
            if len(order.prompts) == 1:
                return order
            raise InvalidRequest(
                f"generate has {len(order.prompts)} prompts; ask for an estimate of each of them",
                field="generate.prompts",
            )
    raise InvalidRequest("one of generate and chat is needed", field="request")


def _interval(interval: Interval) -> pb.Interval:
    return pb.Interval(low=interval.low, middle=interval.middle, high=interval.high)
