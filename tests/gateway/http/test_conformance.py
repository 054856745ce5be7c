"""One request, three ways: HTTP whole, HTTP streamed, gRPC. One answer, or one refusal."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
from google.rpc import error_details_pb2, status_pb2
from tests.gateway.scripted import (
    MODEL,
    Script,
    Serving,
    events_of,
    json_vocab_size,
    make_model,
    serving,
    tokens_of,
)

from baton.core.errors import Overloaded, Unavailable
from baton.gateway.text.model_files import SamplingDefaults
from baton.proto import inference_pb2 as pb
from baton.proto.inference_pb2_grpc import InferenceStub

FOX = tokens_of("the quick brown fox — 日本")
TOO_LONG = [1] * 100


@dataclass(frozen=True, kw_only=True)
class Case:
    prompt: Any = "Hello"
    options: dict[str, Any] = field(default_factory=dict)
    echo: bool = False
    model: str = MODEL
    script: Script = field(default_factory=lambda: Script(tokens=FOX, num_cached=1))
    config: dict[str, Any] = field(default_factory=dict)
    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    can_stream: bool = True


@dataclass
class Choice:
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_tokens: list[int] = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None


@dataclass
class Answer:
    choices: dict[int, Choice] = field(default_factory=dict)
    usage: tuple[int, int, int] = (0, 0, 0)
    """Prompt, cached and output tokens."""

    def choice(self, index: int) -> Choice:
        return self.choices.setdefault(index, Choice())


@dataclass(frozen=True)
class Refusal:
    code: str
    field: str | None
    message: str


def plain(text: str) -> str:
    """Of the names that the faces have for one thing."""
    for name in ("prompts.prompts", "tokens.ids", "text"):
        text = text.replace(name, "prompt") if text.startswith(name) else text
    return text.replace("sampling.", "").replace("num_logprobs", "logprobs")


# HTTP


def body_of(case: Case) -> dict[str, Any]:
    body = {"model": case.model, "prompt": case.prompt, "return_token_ids": True, **case.options}
    return {**body, "echo": True} if case.echo else body


def refusal_of(error: dict[str, Any]) -> Refusal:
    param = error["param"]
    code = error["code"] or "invalid_request"
    return Refusal(code, param and plain(param), plain(error["message"]))


def add_chunk(answer: Answer, chunk: dict[str, Any], per_prompt: int) -> None:
    for given in chunk["choices"]:
        choice = answer.choice(given["index"])
        choice.text += given["text"]
        choice.tokens += given["token_ids"]
        choice.finish_reason = given["finish_reason"] or choice.finish_reason
        if given["logprobs"]:
            choice.logprobs += given["logprobs"]["token_logprobs"]
        if given["index"] % per_prompt == 0:  # gRPC says it once for a prompt
            choice.prompt_tokens += given.get("prompt_token_ids", [])
            for entry in given.get("prompt_logprobs", [])[1:]:
                choice.prompt_logprobs.append(next(iter(entry.values()))["logprob"])
    if usage := chunk.get("usage"):
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        answer.usage = (usage["prompt_tokens"], cached, usage["completion_tokens"])


def read_http(chunks: Sequence[dict[str, Any]], case: Case) -> Answer | Refusal:
    answer = Answer()
    for chunk in chunks:
        if "error" in chunk:
            return refusal_of(chunk["error"])
        add_chunk(answer, chunk, case.options.get("n", 1))
    for choice in answer.choices.values():  # an echoed prompt's come first, one of them unknown
        choice.logprobs = choice.logprobs[len(choice.logprobs) - len(choice.tokens) :]
    return answer


async def whole_over_http(gateway: Serving, case: Case) -> Answer | Refusal:
    response = await gateway.http.post("/v1/completions", json=body_of(case))
    return read_http([response.json()], case)


async def streamed_over_http(gateway: Serving, case: Case) -> Answer | Refusal:
    body = {**body_of(case), "stream": True, "stream_options": {"include_usage": True}}
    response = await gateway.http.post("/v1/completions", json=body)
    is_stream = response.status_code == httpx.codes.OK
    return read_http(events_of(response) if is_stream else [response.json()], case)


# gRPC


def prompt_of(value: str | list[int]) -> pb.Prompt:
    if isinstance(value, str):
        return pb.Prompt(text=value)
    return pb.Prompt(tokens=pb.TokenIds(ids=value))


def request_of(case: Case) -> pb.GenerateRequest:
    options = dict(case.options)
    if isinstance(options.get("stop"), str):
        options["stop"] = [options["stop"]]
    if "logit_bias" in options:
        options["logit_bias"] = {int(key): value for key, value in options["logit_bias"].items()}
    request = pb.GenerateRequest(
        model=case.model,
        sampling=pb.SamplingOptions(**options),
        return_token_ids=True,
        echo=case.echo,
    )
    if isinstance(case.prompt, str):
        request.text = case.prompt
    elif case.prompt and not isinstance(case.prompt[0], int):
        request.prompts.prompts.extend(map(prompt_of, case.prompt))
    else:
        request.tokens.ids.extend(case.prompt)
    return request


async def over_grpc(gateway: Serving, case: Case) -> Answer | Refusal:
    answer = Answer()
    async with grpc.aio.insecure_channel(gateway.grpc_target) as channel:
        try:
            async for response in InferenceStub(channel).Generate(request_of(case)):
                choice = answer.choice(response.index)
                choice.text += response.text
                choice.tokens += response.token_ids
                choice.logprobs += [entry.logprob for entry in response.logprobs]
                choice.prompt_tokens += response.prompt_token_ids
                choice.prompt_logprobs += [entry.logprob for entry in response.prompt_logprobs]
                choice.finish_reason = response.finish_reason or choice.finish_reason
                if response.HasField("usage"):
                    usage = response.usage
                    counts = (usage.prompt_tokens, usage.cached_tokens, usage.output_tokens)
                    answer.usage = counts
        except grpc.aio.AioRpcError as error:
            return refusal_in(error)
    return answer


def refusal_in(error: grpc.aio.AioRpcError) -> Refusal:
    metadata = {key: value for key, value in error.trailing_metadata()}
    status = status_pb2.Status.FromString(metadata["grpc-status-details-bin"])
    info, request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status.details:
        _ = detail.Unpack(info) or detail.Unpack(request)
    where = next((plain(violation.field) for violation in request.field_violations), None)
    return Refusal(info.reason.lower(), where, plain(status.message))


WAYS: dict[str, Callable[[Serving, Case], Any]] = {
    "whole": whole_over_http,
    "streamed": streamed_over_http,
    "grpc": over_grpc,
}


async def outcomes(case: Case) -> dict[str, Answer | Refusal]:
    results: dict[str, Answer | Refusal] = {}
    model = make_model(defaults=case.defaults)
    async with serving(case.script, model=model, **case.config) as gateway:
        for way, ask in WAYS.items():
            if way != "streamed" or case.can_stream:
                results[way] = await ask(gateway, case)
    return results


ANSWERED: dict[str, Case] = {
    "plain": Case(),
    "tokens": Case(prompt=[5, 6, 7]),
    "several prompts": Case(prompt=["Hello", "fox"], options={"n": 2}),
    "several lists": Case(prompt=[[5], [6, 7]]),
    "limit": Case(options={"max_tokens": 3}),
    "end": Case(script=Script(tokens=FOX, ends_with_eos=True)),
    "stop string": Case(options={"stop": ["own", "qui"]}),
    "one stop string": Case(options={"stop": "brown"}),
    "stop string in many tokens": Case(
        options={"stop": ["brown"]}, script=Script(tokens=FOX, num_per_update=4)
    ),
    "logprobs": Case(options={"logprobs": 2}),
    "logprobs of the sampled": Case(options={"logprobs": 0}),
    "prompt logprobs": Case(options={"prompt_logprobs": 1, "n": 2}),
    "echo": Case(echo=True),
    "echo of tokens": Case(prompt=tokens_of("日本")[:-1], echo=True),
    "echo with logprobs": Case(echo=True, options={"logprobs": 1}),
    "echo alone": Case(echo=True, options={"max_tokens": 0, "logprobs": 1}),
    "choices": Case(options={"n": 3, "seed": 4}),
    "best of": Case(options={"n": 2, "best_of": 3}, can_stream=False),
    "all options": Case(
        options={
            "temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "typical_p": 0.8,
            "repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": -0.5,
            "logit_bias": {"7": 5.5}, "allowed_token_ids": [1, 2], "bad_words": ["fox"],
            "max_tokens": 9, "min_tokens": 2, "stop_token_ids": [3], "ignore_eos": True,
            "seed": 11, "priority": -3,
        }
    ),
    "the model's defaults": Case(
        defaults=SamplingDefaults(temperature=0.2, top_k=4, typical_p=0.5, max_new_tokens=4)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERED)
async def test_an_answer_is_the_same_over_both_faces(name: str) -> None:
    case = ANSWERED[name]
    options = {"max_tokens": 30, **case.options}
    if case.defaults.max_new_tokens:
        options = case.options
    results = await outcomes(Case(**{**vars(case), "options": options}))

    whole = results["whole"]
    assert isinstance(whole, Answer), whole
    assert all(result == whole for result in results.values()), json.dumps(
        results, default=vars, indent=1
    )


BAD_OPTIONS: dict[str, list[Any]] = {
    "temperature": [-1],
    "top_k": [-2],
    "top_p": [0, 1.5],
    "min_p": [-0.5, 2],
    "typical_p": [0, 2],
    "repetition_penalty": [0],
    "presence_penalty": [-3],
    "frequency_penalty": [3],
    "logit_bias": [{"9999": 1}, {"7": 101}, {str(i): 1 for i in range(1025)}],
    "allowed_token_ids": [[1, json_vocab_size()]],
    "bad_words": [["a", " "], ["a" * 257], ["a"] * 257],
    "max_tokens": [0, 1000],
    "min_tokens": [31],
    "stop": [["a", ""], ["b" * 257], ["a"] * 65],
    "stop_token_ids": [[1, 10**6], [1] * 257],
    "logprobs": [21],
    "prompt_logprobs": [21],
    "n": [0, 129],
    "best_of": [0, 129],
}

REFUSED: dict[str, Case] = {
    **{
        f"{option} {value!r:.20}": Case(options={option: value})
        for option, values in BAD_OPTIONS.items()
        for value in values
    },
    "fewer drawn than returned": Case(options={"n": 3, "best_of": 2}),
    "too many prompts": Case(prompt=["a"] * 5, config={"max_choices": 4}),
    "too many choices": Case(prompt=["a"] * 3, options={"n": 2}, config={"max_choices": 4}),
    "empty prompt": Case(prompt=""),
    "an empty one of several": Case(prompt=["a", ""]),
    "mixed prompts": Case(prompt=["a", [1]]),
    "no tokens": Case(prompt=[]),
    "an unknown token": Case(prompt=[1, json_vocab_size()]),
    "an unknown token of several": Case(prompt=[[1], [json_vocab_size()]]),
    "too long": Case(prompt=TOO_LONG),
    "one of several too long": Case(prompt=[[1], TOO_LONG]),
    "unknown model": Case(model="gpt-9"),
    "overload": Case(script=Script(start_error=Overloaded("full", retry_after_s=2))),
    "away": Case(script=Script(start_error=Unavailable("no replica"))),
    "lost on the way": Case(script=Script(tokens=FOX, error=Unavailable("lost"), num_before=2)),
    "fault": Case(script=Script(start_error=RuntimeError("secret"))),
    "deadline": Case(script=Script(stalls_after=0), config={"request_timeout_s": 0.2}),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_refusal_is_the_same_over_both_faces(name: str) -> None:
    case = REFUSED[name]
    options = {"max_tokens": 30, **case.options}
    results = await outcomes(Case(**{**vars(case), "options": options}))

    whole = results["whole"]
    assert isinstance(whole, Refusal), whole
    assert set(results.values()) == {whole}
    assert "secret" not in whole.message
