"""The process behind `baton serve`: a Ray cluster, the application in it, and the way back.

Run as `python -m baton.platform.cli.serving MODEL_FOLDER [--verbose]`, the configuration (which may
hold secrets) as JSON on its standard input, in a process session of its own. SIGTERM ends it, and
everything it started.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console

from baton.core.errors import BatonError
from baton.platform.cli.errors import complain, status_of
from baton.platform.cli.process_session import end_session, end_with_parent, is_orphan
from baton.platform.cli.progress import StartBars, start_bars
from baton.platform.config import DeploymentConfig
from baton.platform.gateway.text.model_files import ModelFiles
from baton.platform.local_cluster import OBJECT_STORE_BYTES, num_logical_cpus, ray_environment
from baton.platform.registry import Loading

if TYPE_CHECKING:  # Ray is imported once its environment is set
    from ray.serve.schema import ApplicationStatusOverview

POLL_S = 0.1
READY_TIMEOUT_S = 5.0
console = Console(highlight=False)


class _Stop(BaseException):
    """SIGTERM, wherever the main thread is."""


def main(config: DeploymentConfig, folder: Path, *, is_verbose: bool) -> int:
    end_with_parent()
    if not is_verbose:
        logging.disable(logging.WARNING)  # Ray and Serve tell of every step
    signal.signal(signal.SIGTERM, _raise_stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent forwards one SIGTERM instead
    os.environ.update(ray_environment())
    started = time.monotonic()
    is_started = False
    try:
        with start_bars() as bars:
            bars.show("starting Ray", {})
            checking = _in_background(lambda: _check_model(config, folder))
            _start_ray(config, is_verbose)
            signal.signal(signal.SIGTERM, _raise_stop)  # Ray has put its own in place
            is_started = True
            checking.result()
            _deploy(config, folder, bars, is_verbose)
        _announce(config, folder, time.monotonic() - started)
        signal.pause()
    except (_Stop, SystemExit):  # the latter from Ray's own handler, while it starts
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return 0
    except BatonError as error:
        complain("baton serve", str(error))
        return status_of(error)
    except (ConnectionError, RuntimeError) as error:
        complain("baton serve", str(error))
        return 1
    finally:
        if is_started:
            _shut_down(config, is_verbose)
    return 0


def _in_background(function: Callable[[], None]) -> Future[None]:
    """Run it on a thread that nobody has to wait for."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            function()
            future.set_result(None)
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _check_model(config: DeploymentConfig, folder: Path) -> None:
    """Refuse a model that no replica could load, while Ray is still coming up."""
    from baton.engine.assemble import find_device
    from baton.engine.checkpoint.load import check_model
    from baton.platform.rank_check import check_ranks

    check_ranks(config, folder)
    check_model(
        folder,
        load_format=config.load_format,
        dtype=config.dtype,
        quantize=config.quantize,
        streaming=config.streaming,
        device=None if config.ray.address else find_device(config.device),  # else theirs, unknown
    )


def _start_ray(config: DeploymentConfig, is_verbose: bool) -> None:
    import ray
    from ray import serve

    level = logging.INFO if is_verbose else logging.ERROR
    if config.ray.address:
        ray.init(address=config.ray.address, log_to_driver=is_verbose, logging_level=level)
    else:
        ray.init(
            num_cpus=num_logical_cpus(config),
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=config.ray.dashboard,
            log_to_driver=is_verbose,
            logging_level=level,
        )
    serve.start(proxy_location="Disabled", logging_config={"log_level": level})


def _deploy(config: DeploymentConfig, folder: Path, bars: StartBars, is_verbose: bool) -> None:
    """Return when a request would be answered. Raises RuntimeError if that cannot be."""
    from ray import serve

    from baton.platform.deploy import APP_NAME, build_app

    bars.show("starting replicas", {})
    target = serve.RunTarget(build_app(config, folder), name=APP_NAME, route_prefix=None)
    serve.run_many([target], wait_for_applications_running=False)
    while True:
        overview = serve.status().applications[APP_NAME]
        if overview.status == "DEPLOY_FAILED":
            raise RuntimeError(f"the replicas did not come up: {_reason(overview, is_verbose)}")
        if overview.status == "RUNNING" and _is_ready(APP_NAME):
            return
        bars.show(_stage(overview), _fractions(overview, APP_NAME))
        time.sleep(POLL_S)


def _is_ready(app_name: str) -> bool:
    from ray import serve

    gateway = serve.get_app_handle(app_name)
    return bool(gateway.is_ready.remote().result(timeout_s=READY_TIMEOUT_S))


def _stage(overview: ApplicationStatusOverview) -> str:
    """How many replicas are up."""
    parts = []
    for name, deployment in overview.deployments.items():
        counts = deployment.replica_states
        num_running = sum(n for state, n in counts.items() if state == "RUNNING")
        parts.append(f"{name.lower()} {num_running}/{sum(counts.values())}")
    return "starting replicas: " + ", ".join(parts)


def _fractions(overview: ApplicationStatusOverview, app_name: str) -> dict[str, float]:
    """How far those have loaded that have not finished."""
    registry = overview.deployments.get("Registry")
    if registry is None or registry.status != "HEALTHY":
        return {}
    return {f"{one.replica_id} {one.stage}": one.fraction for one in _loading(app_name)}


def _loading(app_name: str) -> tuple[Loading, ...]:
    from ray import serve

    registry = serve.get_deployment_handle("Registry", app_name)
    loading: tuple[Loading, ...] = registry.loading.remote().result(timeout_s=READY_TIMEOUT_S)
    return loading


def _reason(overview: ApplicationStatusOverview, is_verbose: bool) -> str:
    """What Serve says of the deployments that failed; the last line names the error itself."""
    messages = [d.message for d in overview.deployments.values() if d.status == "DEPLOY_FAILED"]
    message = "\n".join(messages) or overview.message
    if is_verbose:
        return message
    last = [line.strip() for line in message.splitlines() if line.strip()][-1:]
    return "".join(last) + "; see more with --verbose"


def _announce(config: DeploymentConfig, folder: Path, seconds: float) -> None:
    from ray import serve

    from baton.platform.deploy import APP_NAME

    port, grpc_port = serve.get_app_handle(APP_NAME).ports.remote().result()
    host = "localhost" if config.gateway.host in ("0.0.0.0", "::") else config.gateway.host
    host = f"[{host}]" if ":" in host else host
    name = config.model_name
    url = f"{'https' if config.gateway.tls_cert_file else 'http'}://{host}:{port}"
    console.print(
        f"[bold]Baton serves {name}[/bold] with {config.prefill.num_engines} prefill and "
        f"{config.decode.num_engines} decode replicas, after {seconds:.1f} s\n"
        f"  OpenAI API   {url}/v1\n"
        f"  gRPC         {host}:{grpc_port}  (baton.v1.Inference)\n"
        f"  status       {url}/debug/status   /metrics   /debug/leaks\n\n"
        f"{_example(config, folder, url)}\n\n"
        "Ctrl-C stops it.",
        soft_wrap=True,
    )
    if config.chaos.enabled:
        console.print(
            "\n[bold red]CHAOS is enabled: faults are made on purpose; never serve anybody "
            "who depends on the answers.[/bold red]",
            soft_wrap=True,
        )


def _example(config: DeploymentConfig, folder: Path, url: str) -> str:
    """A request to try, as a shell command."""
    body: dict[str, Any] = {"model": config.model_name}
    files = ModelFiles.read(folder, needs_tokenizer=config.wants_weights)
    if files.chat_template is None:
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


def _shut_down(config: DeploymentConfig, is_verbose: bool) -> None:
    import ray
    from ray import serve

    from baton.platform.deploy import APP_NAME

    console.print("finishing requests and stopping")
    if not is_verbose:
        _silence()  # Ray reports the end of its own actors as errors
    if config.ray.address:
        serve.delete(APP_NAME)
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


if __name__ == "__main__":
    exit_status = main(
        msgspec.json.decode(sys.stdin.buffer.read(), type=DeploymentConfig),
        Path(sys.argv[1]),
        is_verbose="--verbose" in sys.argv[2:],
    )
    if is_orphan():  # nobody else is left to end what Ray leaves behind
        end_session(os.getsid(0))
        os._exit(exit_status)
    sys.exit(exit_status)
