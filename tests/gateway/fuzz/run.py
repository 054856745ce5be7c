"""Bent requests over HTTP and gRPC, to a gateway with real replicas, for as long as is asked.

    python -m tests.gateway.fuzz.run [--seed N] [--minutes M] [--clients N]

Clients bend valid requests, send them whole, in pieces, in part or several at a time, and read all,
some or nothing of the answer. Wrong is: a 5xx other than 503 and 504, over gRPC UNKNOWN, INTERNAL
or DATA_LOSS; an error in the log; a connection that is refused, or stays open; and, once all have
left, a face that does not answer, a request that is still open, a block of KV that is held, a file,
a task or a thread more than before. Each fault is told with the seed of its case. Ends with status
1 if there is one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import re
import struct
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

import grpc.aio
from tests.gateway.fuzz.held import Errors, Held, held
from tests.gateway.fuzz.mutations import bent_body, mutated
from tests.gateway.fuzz.requests import (
    ADMIN_GETS,
    ADMIN_POSTS,
    GETS,
    MESSAGES,
    POSTS,
    get,
    post,
)
from tests.gateway.resumable.test_resumable_fleet import engine_for_text, gateway_over
from tests.in_process_fleet import Fleet, running_fleet

from baton.gateway.server import GatewayServer
from baton.proto import inference_pb2 as pb
from baton.proto.inference_pb2_grpc import InferenceStub

LIMITS: dict[str, Any] = {
    "admin_port": 0,
    "header_timeout_s": 0.5,
    "body_timeout_s": 0.5,
    "unread_timeout_s": 0.5,
    "request_timeout_s": 3.0,
    "resume_window_s": 0.5,
    "keep_alive_s": 1,
    "max_body_bytes": 100_000,
}
HANG_S = 60.0
"""Far beyond all of those limits, and a busy machine."""
REST_S = 60.0
"""Within which nothing may be left of what clients have begun."""
ENOUGH = 200
"""Faults, after which clients begin no more cases: where nobody is let in, each would be one."""
STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")
SAID = {b"503", b"504"}
WRONG = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS}
NOT_LET_IN = "failed to connect"
"""In the details of what is then UNAVAILABLE."""
VALID = [*map(get, GETS), *(post(path, json.dumps(body).encode()) for path, body in POSTS)]
CUT_OFF = struct.pack("ii", 1, 0)
"""Of SO_LINGER: closing resets the connection."""
APART = (("grpc.use_local_subchannel_pool", 1),)
"""Each channel has a connection of its own."""


@dataclass(slots=True)
class Fuzz:
    server: GatewayServer
    fleet: Fleet
    frames: Sequence[bytes]
    """What a client of gRPC sends in a connection, as bytes."""
    cases: Counter[str] = field(default_factory=Counter)
    """By the face that is tried."""
    seen: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    async def case(self, seed: str) -> None:
        draw = random.Random(seed)
        kind = draw.choice((self._http, self._http, self._http, self._message, self._frames))
        try:
            async with asyncio.timeout(HANG_S):
                trouble = await kind(draw)
        except TimeoutError:
            trouble = "hangs"
        except ConnectionRefusedError as error:
            trouble = f"is not let in: {error}"
        if trouble:
            self.faults.append(f"case {seed}: {trouble}")

    async def _http(self, draw: random.Random) -> str:
        is_admin = draw.random() < 0.2
        gets, posts = (ADMIN_GETS, ADMIN_POSTS) if is_admin else (GETS, POSTS)
        path, body = draw.choice(posts)
        is_post = draw.random() < 0.75
        valid = post(path, bent_body(body, draw)) if is_post else get(draw.choice(gets))
        sent = mutated(valid, draw, VALID)
        if draw.random() < 0.1:
            sent = sent * draw.choice((2, 5, 40))
        port = self.server.admin_port if is_admin else self.server.http_port
        self.cases["HTTP, for operators" if is_admin else "HTTP"] += 1
        answer = await self._exchange(draw, port, sent)
        statuses = STATUS.findall(answer)
        self.seen.update(f"HTTP {status.decode()}" for status in statuses or [b"none"])
        bad = [one for one in statuses if one >= b"500" and one not in SAID]
        return f"answers {bad} to {sent[:2000]!r}" if bad else ""

    async def _frames(self, draw: random.Random) -> str:
        """HTTP/2, bent below what gRPC's own client would send."""
        sent = mutated(draw.choice(self.frames), draw, self.frames)
        self.cases["gRPC, as frames"] += 1
        answer = await self._exchange(draw, self.server.grpc_port, sent, lasts_s=0.3)
        self.seen["frames answered" if answer else "frames unanswered"] += 1
        return ""

    async def _exchange(
        self, draw: random.Random, port: int, data: bytes, lasts_s: float | None = None
    ) -> bytes:
        """What came until the other side closed, or we did."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        answer = b""
        try:
            step = draw.choice((len(data), len(data), 700, 50)) or 1
            for start in range(0, len(data), step):
                writer.write(data[start : start + step])
                await writer.drain()
                if step < len(data):
                    await asyncio.sleep(draw.choice((0, 0, 0.001)))
            manner = draw.random()
            if manner < 0.1:
                writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, CUT_OFF)
                return answer
            if manner < 0.2 and writer.can_write_eof():
                writer.write_eof()
            with suppress(TimeoutError):
                async with asyncio.timeout(lasts_s):
                    while more := await reader.read(draw.choice((1, 4096, 1 << 16))):
                        answer += more
        except OSError:
            pass  # the other side has closed
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
        return answer

    async def _message(self, draw: random.Random) -> str:
        """What is no frame's fault: bent messages, and metadata."""
        others = [message.SerializeToString() for _, message in MESSAGES]
        method, message = draw.choice(MESSAGES)
        data = mutated(message.SerializeToString(), draw, others)
        self.cases["gRPC, as messages"] += 1
        metadata = draw.choice(((), (("traceparent", "x"),), (("authorization", "Bearer"),)))
        details: str | None = ""
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.server.grpc_port}", APART)
        try:
            ask: Any = channel.unary_stream(f"/baton.v1.Inference/{method}")
            call = ask(data, timeout=draw.choice((0.05, 2.0)), metadata=metadata)
            leaves_after = draw.choice((0, 1, 1000, 1000))
            async for _ in call:
                leaves_after -= 1
                if leaves_after < 0:
                    call.cancel()
            code = await call.code()
        except grpc.aio.AioRpcError as error:
            code, details = error.code(), error.details()
        except asyncio.CancelledError:
            if not call.cancelled():
                raise
            code = grpc.StatusCode.CANCELLED
        finally:
            await channel.close()
        self.seen[f"gRPC {code.name}"] += 1
        is_wrong = code in WRONG or NOT_LET_IN in (details or "")
        return f"{method} ends {code.name}, {details}, for {data[:500]!r}" if is_wrong else ""

    async def rest(self, before: Held) -> None:
        """Whether all that clients have begun is over, and the next ones are served."""
        for face, answers in (("HTTP", self._http_answers), ("gRPC", self._grpc_answers)):
            try:
                async with asyncio.timeout(HANG_S):
                    await answers()
            except (AssertionError, TimeoutError, OSError, grpc.aio.AioRpcError) as error:
                self.faults.append(f"{face} answers no more: {error!r}")
        deadline = time.monotonic() + REST_S
        while (left := held(self.server).beyond(before)) and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
        self.faults += [f"left behind: {one}" for one in left]
        try:
            await self.fleet.assert_nothing_is_held(timeout_s=REST_S)
        except (AssertionError, TimeoutError) as error:
            self.faults.append(f"KV is held: {error!r}")

    async def _http_answers(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.http_port)
        writer.write(get("/v1/models"))
        answer = await reader.read()
        writer.close()
        assert STATUS.findall(answer) == [b"200"], answer

    async def _grpc_answers(self) -> None:
        target = f"127.0.0.1:{self.server.grpc_port}"
        async with grpc.aio.insecure_channel(target, APART) as channel:
            await InferenceStub(channel).ListModels(pb.ListModelsRequest())


async def recorded_frames(port: int) -> list[bytes]:
    """What gRPC's own client sends, for a call and for a stream."""
    found: list[bytes] = []

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection("127.0.0.1", port)
        told = bytearray()

        async def copy(
            source: asyncio.StreamReader, sink: asyncio.StreamWriter, to: bytearray
        ) -> None:
            with suppress(ConnectionError):
                while data := await source.read(1 << 16):
                    to += data
                    sink.write(data)
            sink.close()

        await asyncio.gather(copy(reader, ours, told), copy(theirs, writer, bytearray()))
        found.append(bytes(told))

    async with await asyncio.start_server(pass_on, "127.0.0.1", 0) as proxy:
        target = f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        for method, message in MESSAGES:
            async with grpc.aio.insecure_channel(target, APART) as channel:
                ask: Any = channel.unary_stream(f"/baton.v1.Inference/{method}")
                with suppress(grpc.aio.AioRpcError):
                    async for _ in ask(message.SerializeToString()):
                        pass
        async with asyncio.timeout(60):
            while len(found) < len(MESSAGES):
                await asyncio.sleep(0.01)
    return found


@asynccontextmanager
async def fuzzed_gateway() -> AsyncIterator[Fuzz]:
    async with (
        running_fleet(make_engine=engine_for_text) as fleet,
        gateway_over(fleet, **LIMITS) as server,
    ):
        yield Fuzz(server, fleet, await recorded_frames(server.grpc_port))


async def fuzz(seed: int, seconds: float, num_clients: int) -> Fuzz:
    errors = Errors()
    logging.getLogger().addHandler(errors)
    try:
        async with fuzzed_gateway() as found:
            numbers = iter(range(1 << 62))

            async def client(until_s: float) -> None:
                while time.monotonic() < until_s and len(found.faults) < ENOUGH:
                    await found.case(f"{seed}-{next(numbers)}")

            async def clients(lasts_s: float) -> None:
                until_s = time.monotonic() + lasts_s
                await asyncio.gather(*(client(until_s) for _ in range(num_clients)))

            await clients(min(5.0, seconds / 4))  # what is made once
            await asyncio.sleep(2 * LIMITS["keep_alive_s"])
            before = held(found.server)
            await clients(seconds)
            await found.rest(before)
            after = held(found.server)
            logging.getLogger().removeHandler(errors)  # what follows is the end of the servers
            print(f"{sum(found.cases.values())} cases: {dict(found.cases.most_common())}")
            print(f"answers: {dict(found.seen.most_common())}")
            print(f"before {before}, after {after}")
    finally:
        logging.getLogger().removeHandler(errors)
    found.faults += [f"log: {text}" for text in errors.texts]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=12)
    given = parser.parse_args()
    found = asyncio.run(fuzz(given.seed, given.minutes * 60, given.clients))
    for fault in found.faults[:50]:
        print(fault)
    print(f"{len(found.faults)} faults")
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main())
