"""Valid requests of every kind, to be bent: over HTTP as bytes, over gRPC as messages."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from baton.proto import inference_pb2 as pb

HELLO = [{"role": "user", "content": "Hello world"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
USAGE = {"include_usage": True}
POSTS: tuple[tuple[str, Any], ...] = (
    ("/v1/completions", {"prompt": "Hello", "max_tokens": 9, "n": 2, "logprobs": 2}),
    ("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 40, "stream": True, "seed": 1}),
    ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 3, "stop": ["x"], "echo": True}),
    ("/v1/completions", {"prompt": "Hello " * 40, "max_tokens": 900, "stream": True}),
    ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 9, "tools": [TOOL]}),
    ("/v1/chat/completions", {"messages": HELLO, "stream": True, "stream_options": USAGE}),
    ("/v1/responses", {"input": "Hello", "max_output_tokens": 9, "stream": True}),
    ("/v1/responses", {"input": [{"type": "item_reference", "id": "msg_x_0"}], "store": True}),
    ("/v1/embeddings", {"input": ["Hello", "world"], "encoding_format": "base64"}),
    ("/v1/rerank", {"query": "a", "documents": ["Hello", {"text": "b"}], "pooling": "mean"}),
    ("/v1/score", {"text_1": "a", "text_2": ["b", "c"], "truncate_prompt_tokens": 9}),
    ("/v1/classify", {"input": ["Hello", "world"], "use_activation": False}),
    ("/v1/estimate", {"prompt": "Hello"}),
    ("/tokenize", {"messages": HELLO}),
    ("/detokenize", {"tokens": [5, 6, 7]}),
)  # fmt: skip
GETS = (
    "/v1/models", "/v1/models/org%2Ftiny", "/v1/requests/x", "/v1/streams", "/health", "/ready",
    "/v1/responses/x", "/-/routes", "/metrics", "/debug/status", "/docs?x=1",
)  # fmt: skip
ADMIN_POSTS: tuple[tuple[str, Any], ...] = (
    ("/debug/drain", {"replica": "nobody", "force": False}),
    ("/debug/undrain", {"replica": "nobody"}),
    ("/debug/reset_prefix_cache", {"replica": "nobody"}),
)
ADMIN_GETS = ("/debug/status", "/debug/leaks", "/debug/decisions", "/metrics", "/v1/requests/x")

SAMPLING = pb.SamplingOptions(max_tokens=12, temperature=0.5, stop=["x"], logprobs=2, seed=3)
LONG = pb.SamplingOptions(max_tokens=900)
USER = pb.ChatMessage(role="user", content="Hello")
MESSAGES: tuple[tuple[str, Message], ...] = (
    ("Generate", pb.GenerateRequest(text="Hello", sampling=SAMPLING, resumable=True)),
    ("Generate", pb.GenerateRequest(text="Hello " * 40, sampling=LONG)),
    ("Chat", pb.ChatRequest(sampling=SAMPLING, messages=[USER])),
    ("Tokenize", pb.TokenizeRequest(text="Hello")),
    ("Detokenize", pb.DetokenizeRequest(ids=[5, 6, 7])),
    ("Embed", pb.EmbedRequest(inputs=[pb.Prompt(text="Hello")])),
    ("Estimate", pb.EstimateRequest(generate=pb.GenerateRequest(text="Hello"))),
    ("ResumeGenerate", pb.ResumeRequest(stream_id="x", last_sequence=1)),
    ("ListModels", pb.ListModelsRequest()),
)  # fmt: skip


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()


def post(path: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
