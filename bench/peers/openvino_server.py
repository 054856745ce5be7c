"""A minimal server of token ids around OpenVINO GenAI's continuous batching.

Runs in an environment with openvino-genai, so it does not import Baton. A token is streamed as its
word (see models.py), so nothing is detokenized.

    python openvino_server.py MODEL PORT MAX_REQUESTS KV_GIB NUM_THREADS
"""

from __future__ import annotations

import asyncio
import itertools
import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import openvino
import openvino_genai

Tell = Callable[[Sequence[int]], object]
YIELD_S = 5e-5


class Batching:
    """The pipeline, stepped by a thread of its own while there are requests."""

    def __init__(self, model: str, max_requests: int, kv_gib: int, num_threads: int) -> None:
        scheduling = openvino_genai.SchedulerConfig()
        scheduling.cache_size = kv_gib
        scheduling.max_num_seqs = max_requests
        scheduling.enable_prefix_caching = True
        properties = {"INFERENCE_NUM_THREADS": num_threads}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            model, scheduling, "CPU", properties
        )
        self._new: queue.SimpleQueue[tuple[list[int], int, Tell]] = queue.SimpleQueue()
        self._numbers = itertools.count()
        threading.Thread(target=self._run, daemon=True).start()

    def ask(self, tokens: list[int], max_tokens: int, tell: Tell) -> None:
        """Add a request. `tell` is called from the thread: with the tokens of each step, and with
        none at the end."""
        self._new.put((tokens, max_tokens, tell))

    def _run(self) -> None:
        running: dict[int, tuple[Any, Tell]] = {}
        while True:
            while not running or not self._new.empty():
                tokens, max_tokens, tell = self._new.get()
                options = openvino_genai.GenerationConfig()
                options.max_new_tokens, options.ignore_eos = max_tokens, True
                options.do_sample = False
                ids = openvino.Tensor(numpy.array([tokens], dtype=numpy.int64))
                number = next(self._numbers)
                running[number] = self._pipeline.add_request(number, ids, options), tell
            self._pipeline.step()
            time.sleep(YIELD_S)  # so that the event loop gets the GIL and can write the tokens
            for number, (handle, tell) in list(running.items()):
                while handle.can_read():
                    for output in handle.read().values():
                        tell(output.generated_ids)
                if handle.get_status() != openvino_genai.GenerationStatus.RUNNING:
                    del running[number]
                    tell([])


async def answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, batching: Batching
) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    if head.startswith("get /health"):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()
        return
    size = next(
        int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("content-length")
    )
    asked = json.loads(await reader.readexactly(size))
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    came: asyncio.Queue[Sequence[int]] = asyncio.Queue()
    batching.ask(
        asked["prompt"],
        asked["max_tokens"],
        lambda tokens: loop.call_soon_threadsafe(came.put_nowait, tokens),
    )
    while tokens := await came.get():
        text = "".join(f" w{token}" for token in tokens)
        event = b"data: " + json.dumps({"choices": [{"index": 0, "text": text}]}).encode() + b"\n\n"
        writer.write(b"%x\r\n%s\r\n" % (len(event), event))
        await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    writer.close()


async def main() -> None:
    model, port, max_requests, kv_gib, num_threads = sys.argv[1:]
    batching = Batching(model, int(max_requests), int(kv_gib), int(num_threads))
    server = await asyncio.start_server(
        lambda reader, writer: answer(reader, writer, batching), "127.0.0.1", int(port)
    )
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
