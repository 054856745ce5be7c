"""Processes of their own for tests, which begin with torch imported: each worker imports it once.

    worker --starts--> a server that has only imported --forks--> process

A fork of the worker itself would have its locks and none of its threads. What is ours is imported
by each process: the server may be started from anywhere.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext

FOREIGN = ("torch.distributed", "triton", "safetensors.torch", "tokenizers", "msgspec", "grpc.aio")


def warm_processes() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*FOREIGN])
    return context
