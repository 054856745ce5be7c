"""Replaces the engine of replicas in Ray's workers by one that echoes and sleeps.

Name this module in RAY_preload_python_modules. It patches the replica's module once a worker that
becomes a replica imports it; all else is as deployed. Each stands for a replica with a device of
its own, so that several fit on the cores of one machine.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from baton.core.step_times import StepTimes

MODULE = "baton.platform.replica.replica"
TIMES = StepTimes(constant_s=0.03, token_s=1e-3, request_s=1e-3)
"""A prompt of 500 tokens takes half a second, a decode step of four requests 38 ms."""


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            module.assemble_engine = _paced_engine

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _paced_engine(folder: Any, config: Any, **options: Any) -> Any:
    from baton.engine.engine import Engine
    from baton.engine.passes.echo import echo_info
    from bench.paced.runner import PacedRunner

    info = echo_info(vocab_size=4096, max_model_len=4096)
    cache = config.cache
    runner = PacedRunner(
        info, num_blocks=cache.num_blocks or 2048, block_size=cache.block_size, times=TIMES
    )
    return Engine(runner, config)


sys.meta_path.insert(0, _Finder())
