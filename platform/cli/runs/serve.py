"""The process behind `baton serve`: starts Ray and the application, and stops both.

It has its own process session (`process_session.py`). SIGTERM ends it, and everything it started.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
from rich.console import Console

from baton.core.cores import usable_cores
from baton.core.errors import BatonError
from baton.core.replicas import counts_by_role
from baton.gateway.text.model_files import ModelFiles
from baton.platform.cli.runs.background import in_background
from baton.platform.cli.runs.deploy import Ports, Watch, deploy
from baton.platform.cli.runs.out_of_memory import OutOfMemory
from baton.platform.cli.runs.process_session import end_with_parent
from baton.platform.cli.runs.start_check import StartCheck
from baton.platform.cli.terminal.errors import complain, status_of
from baton.platform.cli.terminal.progress import StartBars, start_bars
from baton.platform.cli.terminal.rays_words import came_late, in_one_line
from baton.platform.cli.terminal.start_report import StartReport
from baton.platform.cli.terminal.worker_log import NodeLog, WorkerLog, follow_workers
from baton.platform.cluster.local_cluster import (
    OBJECT_STORE_BYTES,
    draw_ray_token,
    joining_environment,
    num_logical_cpus,
    ray_environment,
    worker_environment,
)
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.machine.child_processes import descendants, end
from baton.platform.machine.interpreter import without_garbage_collection
from baton.platform.observe.gateway_pages import gateway_url, reachable
from baton.platform.observe.logs import Lines, start_log

log = logging.getLogger(__name__)
console = Console(highlight=False)
RAY_STARTS = 2
"""Attempts to start Ray. Ray gives its agents a fixed 15 s, which may be too short on a loaded
machine; the second time their files are in memory."""
WATCH_PERIOD_S = 3.0
"""Seconds between checks for processes ended by the OOM killer, and for replicas come and gone."""
DELETE_TIMEOUT_S = 65.0
"""Seconds for Serve to delete the application. Serve gives up after 60, but not on a controller
that does not answer."""


class _Stop(BaseException):
    """Raised in the main thread by SIGTERM."""


def run(config: DeploymentConfig, folder: Path, check: StartCheck, *, is_verbose: bool) -> int:
    """Serve until SIGTERM, and return the exit status."""
    end_with_parent()
    signal.signal(signal.SIGTERM, _raise_stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent forwards one SIGTERM instead
    if not config.ray.address:
        draw_ray_token()
    os.environ.update(joining_environment() if config.ray.address else ray_environment())
    started = time.monotonic()
    is_started = False
    out_of_memory = OutOfMemory()
    watch = _unwatched if config.ray.address else out_of_memory.warn  # there replicas are elsewhere
    try:
        with start_bars() as bars:
            out = _start_log(config, bars, is_verbose)
            report = StartReport(log.info, bars)
            with report.ticking():
                report.enter("checking the model")
                importlib.import_module("ray")  # meanwhile
                if warning := check.warning():
                    log.warning("%s", warning)
                report.enter("starting Ray")
                worker_log = WorkerLog(out, config.log_format, shows_all=is_verbose)
                node_log = NodeLog(worker_log.names, shows_all=is_verbose)
                _start_ray(config, worker_log, node_log)
                signal.signal(signal.SIGTERM, _raise_stop)  # Ray has installed its own handlers
                is_started = True
                lent = None if config.ray.address else folder
                ports = deploy(config, lent, report, watch)
        _announce(config, folder, ports, time.monotonic() - started)
        _watch_on(Watch(config), watch)
    except (_Stop, SystemExit):  # SystemExit by Ray's own handler, while it starts
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return 0
    except BatonError as error:
        _complain(config, error)
        return status_of(error)
    except (ConnectionError, RuntimeError) as error:
        reason = "; ".join(filter(None, [str(error), out_of_memory.latest]))
        _complain(config, RuntimeError(reason))
        return 1
    except Exception as error:
        if not type(error).__module__.startswith("ray."):
            raise
        _complain(config, RuntimeError(in_one_line(f"{type(error).__name__}: {error}")))
        return 1
    finally:
        if is_started:
            _shut_down(config)
    return 0


def _watch_on(replicas: Watch, watch: Callable[[], None]) -> None:
    while True:
        time.sleep(WATCH_PERIOD_S)
        watch()
        replicas.look()


def _unwatched() -> None:
    pass


def _start_log(config: DeploymentConfig, bars: StartBars, is_verbose: bool) -> Lines:
    """Start the log: on a terminal only warnings, printed above the bars, which show the stages;
    into a file, everything."""
    is_file = not sys.stdout.isatty()
    out: Lines = sys.stdout if is_file else bars
    shows_stages = is_file or is_verbose or not bars.are_drawn or config.log_format == "json"
    level = logging.INFO if shows_stages else logging.WARNING
    start_log(config.log_format, "serve", level=level, stream=out)
    return out


def _complain(config: DeploymentConfig, error: Exception) -> None:
    if config.log_format == "json":
        log.error("%s", error)
    else:
        complain("baton serve", str(error))


def _start_ray(config: DeploymentConfig, worker_log: WorkerLog, node_log: NodeLog) -> None:
    with without_garbage_collection():
        importing = in_background(_import_serve)
        try:
            _join_or_start(config)
        except Exception as error:  # Ray raises various exceptions
            raise RuntimeError(in_one_line(f"{type(error).__name__}: {error}")) from error
        follow_workers(worker_log, node_log)
        importing.result()


def _join_or_start(config: DeploymentConfig) -> None:
    import ray

    if config.ray.address:
        ray.init(address=config.ray.address, logging_level=logging.ERROR)
        return
    os.environ.update(worker_environment())
    before = descendants(os.getpid())
    for num_left in reversed(range(RAY_STARTS)):
        try:
            ray.init(
                address="local",  # never one that happens to run here: it is stopped at the end
                num_cpus=num_logical_cpus(config),
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=config.ray.dashboard,
                logging_level=logging.ERROR,
            )
        except Exception as error:
            if not num_left or not came_late(error) or not _is_overloaded():
                raise
            log.warning("Ray did not come up in time, on a machine that is overloaded: once more")
            ray.shutdown()
            end(descendants(os.getpid()) - before)  # without its own node, it ends nothing
        else:
            return


def _is_overloaded() -> bool:
    return os.getloadavg()[0] > usable_cores()


def _import_serve() -> None:
    """Import Serve, which takes half a second, while Ray's processes start."""
    importlib.import_module("baton.platform.cluster.deploy")
    logging.getLogger("ray.serve").setLevel(logging.ERROR)  # it logs every step


def _announce(config: DeploymentConfig, folder: Path, ports: Ports, seconds: float) -> None:
    port, grpc_port, admin_port = ports
    name, gateway = config.model_name, config.gateway
    host, url = reachable(gateway.host), gateway_url(gateway, gateway.host, port)
    admin = gateway_url(gateway, gateway.admin_host, admin_port) if admin_port else ""
    console_path = "   /console" if gateway.console else ""
    if config.log_format == "json":
        addresses = {"url": f"{url}/v1", "grpc": f"{host}:{grpc_port}", "model": name}
        addresses |= {"admin": admin} if admin else {}
        log.info("ready after %.1f s", seconds, extra=addresses)
    else:
        console.print(
            f"[bold]Baton serves {name}[/bold] with "
            f"{counts_by_role(config.wanted_replicas)}, after {seconds:.1f} s\n"
            f"  OpenAI API   {url}/v1   its endpoints: {url}/docs\n"
            f"  gRPC         {host}:{grpc_port}  (baton.v1.Inference)\n"
            f"  pages        {url}/docs{console_path}\n"
            + (f"  operators    {admin}/debug/status   /metrics{console_path}\n" if admin else "")
            + "\n"
            f"{_example(config, folder, url)}\n\n"
            "Ctrl-C stops it.",
            soft_wrap=True,
        )
    if config.chaos.enabled:
        log.warning(
            "CHAOS is enabled: faults are made on purpose; never serve anybody who depends on "
            "the answers"
        )


def _example(config: DeploymentConfig, folder: Path, url: str) -> str:
    """A request to try, as a shell command."""
    body: dict[str, Any] = {"model": config.model_name}
    files = ModelFiles.read(folder, needs_tokenizer=config.wants_weights)
    if not (files.chat_templates or config.gateway.chat_template):
        path = "completions"
        body["prompt"] = "def add(a, b):"
    else:
        path = "chat/completions"
        body["messages"] = [{"role": "user", "content": "Write the function `add`."}]
    key = " -H 'authorization: Bearer KEY'" if config.gateway.needs_key else ""
    return (
        f"  curl {url}/v1/{path} -H 'content-type: application/json'{key} \\\n"
        f"    -d '{msgspec.json.encode(body).decode()}'"
    )


def _shut_down(config: DeploymentConfig) -> None:
    import ray
    from ray import serve

    log.warning("finishing requests and stopping")
    _silence()  # Ray reports the end of its own actors as errors
    if config.ray.address:
        with suppress(TimeoutError):  # ours, or Serve's own: it finishes what it was asked
            in_background(partial(serve.delete, config.ray.app_name)).result(DELETE_TIMEOUT_S)
    else:
        serve.shutdown()  # type: ignore[no-untyped-call]
    ray.shutdown()


def _silence() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(nowhere, stream.fileno())


def _raise_stop(signum: int, frame: FrameType | None) -> None:
    raise _Stop
