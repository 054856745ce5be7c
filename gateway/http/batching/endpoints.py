"""The paths of files and batches, for the OpenAPI document."""

from __future__ import annotations

from baton.gateway.batches.files import FileObject
from baton.gateway.batches.records import Batch
from baton.gateway.http.batching.batches import BatchBody, BatchListAnswer
from baton.gateway.http.batching.files import (
    JSON_LINES,
    DeletedFileAnswer,
    FileForm,
    FileListAnswer,
)
from baton.gateway.http.batching.message_batches import (
    DeletedMessageBatch,
    MessageBatchAnswer,
    MessageBatchBody,
    MessageBatchListAnswer,
)
from baton.gateway.http.openapi.endpoint import Endpoint

BATCHES = "Batches"

BATCH_PATHS = (
    Endpoint(
        path="/v1/files",
        method="post",
        tag=BATCHES,
        summary="Upload what a batch is to answer",
        details=(
            "A form of `purpose` (`batch`) and `file`; `expires_after[anchor]` and "
            "`expires_after[seconds]` if it is to be kept for less than `gateway.batches.keep_s`."
        ),
        body=FileForm,
        body_media="multipart/form-data",
        answer=FileObject,
        example={"purpose": "batch", "file": "@requests.jsonl"},
    ),
    Endpoint(
        path="/v1/files",
        tag=BATCHES,
        summary="Your files, the newest first",
        answer=FileListAnswer,
        queries=("after", "limit", "order", "purpose"),
    ),
    Endpoint(path="/v1/files/{file_id}", tag=BATCHES, summary="What a file is", answer=FileObject),
    Endpoint(
        path="/v1/files/{file_id}",
        method="delete",
        tag=BATCHES,
        summary="Delete a file",
        details="Batches that have begun with it go on.",
        answer=DeletedFileAnswer,
    ),
    Endpoint(
        path="/v1/files/{file_id}/content",
        tag=BATCHES,
        summary="What is in a file",
        media=JSON_LINES,
    ),
    Endpoint(
        path="/v1/batches",
        method="post",
        tag=BATCHES,
        summary="Answer a file of requests within a day",
        details=(
            "Lines run when nobody else needs the replicas, each as a request of its own; what is "
            "wrong with one is answered in the error file. A file that cannot be read, or has a "
            "`custom_id` twice, fails the batch, whose `errors` name the lines."
        ),
        body=BatchBody,
        answer=Batch,
        example={
            "input_file_id": "file-0192f3c1a2b3c4d5e6f708192a3b",
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        },
    ),
    Endpoint(
        path="/v1/batches",
        tag=BATCHES,
        summary="Your batches, the newest first",
        answer=BatchListAnswer,
        queries=("after", "limit", "order"),
    ),
    Endpoint(path="/v1/batches/{batch_id}", tag=BATCHES, summary="How far it is", answer=Batch),
    Endpoint(
        path="/v1/batches/{batch_id}/cancel",
        method="post",
        tag=BATCHES,
        summary="End a batch",
        details="What it has answered by then is in its output file.",
        answer=Batch,
    ),
    Endpoint(
        path="/v1/messages/batches",
        method="post",
        tag=BATCHES,
        summary="Answer many messages within a day, in the shape of Anthropic's batches",
        details=(
            "Runs as a batch of `/v1/batches` whose lines ask `/v1/messages`, and is listed there, "
            "too. Its results are kept for `gateway.batches.keep_s`."
        ),
        body=MessageBatchBody,
        answer=MessageBatchAnswer,
        example={
            "requests": [
                {
                    "custom_id": "a",
                    "params": {
                        "max_tokens": 32,
                        "messages": [{"role": "user", "content": "Say hello."}],
                    },
                }
            ]
        },
    ),
    Endpoint(
        path="/v1/messages/batches",
        tag=BATCHES,
        summary="Your batches of messages, the newest first",
        answer=MessageBatchListAnswer,
        queries=("after_id", "before_id", "limit"),
    ),
    Endpoint(
        path="/v1/messages/batches/{batch_id}",
        tag=BATCHES,
        summary="How far it is",
        answer=MessageBatchAnswer,
    ),
    Endpoint(
        path="/v1/messages/batches/{batch_id}",
        method="delete",
        tag=BATCHES,
        summary="Delete a batch of messages that has ended, and its results",
        answer=DeletedMessageBatch,
    ),
    Endpoint(
        path="/v1/messages/batches/{batch_id}/cancel",
        method="post",
        tag=BATCHES,
        summary="End a batch of messages",
        details="What it has answered by then is in its results.",
        answer=MessageBatchAnswer,
    ),
    Endpoint(
        path="/v1/messages/batches/{batch_id}/results",
        tag=BATCHES,
        summary="A result of each of its requests, a line each, in no order",
        media=JSON_LINES,
    ),
)
