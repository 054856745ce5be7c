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
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.status import Status

from baton.core.errors import BatonError
from baton.platform.cli.process_session import end_session, end_with_parent, is_orphan
from baton.platform.config import DeploymentConfig
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
        with console.status("starting Ray") as status:
            checking = _in_background(lambda: _check_model(folder))
            _start_ray(config, is_verbose)
            signal.signal(signal.SIGTERM, _raise_stop)  # Ray has put its own in place
            is_started = True
            checking.result()
            _deploy(config, folder, status)
        _announce(config, time.monotonic() - started)
        signal.pause()
    except (_Stop, SystemExit):  # the latter from Ray's own handler, while it starts
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return 0
    except (BatonError, ConnectionError, RuntimeError) as error:
        console.print(f"[red]baton serve:[/red] {error}")
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


def _check_model(folder: Path) -> None:
    """Refuse a model that no replica could load, while Ray is still coming up."""
    from baton.engine.checkpoint.load import check_model

    check_model(folder)


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


def _deploy(config: DeploymentConfig, folder: Path, status: Status) -> None:
    """Return when a request would be answered. Raises RuntimeError if that cannot be."""
    from ray import serve

    from baton.platform.deploy import APP_NAME, build_app

    status.update("starting replicas")
    target = serve.RunTarget(build_app(config, folder), name=APP_NAME, route_prefix=None)
    serve.run_many([target], wait_for_applications_running=False)
    while True:
        overview = serve.status().applications[APP_NAME]
        if overview.status == "DEPLOY_FAILED":
            raise RuntimeError(f"the replicas did not come up: {_reason(overview)}")
        if overview.status == "RUNNING" and _is_ready(APP_NAME):
            return
        status.update(_progress(overview, APP_NAME))
        time.sleep(POLL_S)


def _is_ready(app_name: str) -> bool:
    from ray import serve

    gateway = serve.get_app_handle(app_name)
    return bool(gateway.is_ready.remote().result(timeout_s=READY_TIMEOUT_S))


def _progress(overview: ApplicationStatusOverview, app_name: str) -> str:
    """Which replicas are up, and how far the others have loaded."""
    parts = []
    for name, deployment in overview.deployments.items():
        counts = deployment.replica_states
        num_running = sum(n for state, n in counts.items() if state == "RUNNING")
        parts.append(f"{name.lower()} {num_running}/{sum(counts.values())}")
    registry = overview.deployments.get("Registry")
    if registry is not None and registry.status == "HEALTHY":
        parts += [f"{one.replica_id} {one.stage} {one.fraction:.0%}" for one in _loading(app_name)]
    return "starting replicas: " + ", ".join(parts)


def _loading(app_name: str) -> tuple[Loading, ...]:
    from ray import serve

    registry = serve.get_deployment_handle("Registry", app_name)
    loading: tuple[Loading, ...] = registry.loading.remote().result(timeout_s=READY_TIMEOUT_S)
    return loading


def _reason(overview: ApplicationStatusOverview) -> str:
    """What Serve says of the deployments that failed; the last line names the error itself."""
    messages = [d.message for d in overview.deployments.values() if d.status == "DEPLOY_FAILED"]
    return "\n".join(messages) or overview.message


def _announce(config: DeploymentConfig, seconds: float) -> None:
    from ray import serve

    from baton.platform.deploy import APP_NAME

    port, grpc_port = serve.get_app_handle(APP_NAME).ports.remote().result()
    host = "localhost" if config.gateway.host in ("0.0.0.0", "::") else config.gateway.host
    host = f"[{host}]" if ":" in host else host
    name = config.model_name
    body = msgspec.json.encode(
        {"model": name, "messages": [{"role": "user", "content": "Write the function `add`."}]}
    ).decode()
    console.print(
        f"[bold]Baton serves {name}[/bold] with {config.prefill.replicas} prefill and "
        f"{config.decode.replicas} decode replicas, after {seconds:.1f} s\n"
        f"  OpenAI API   http://{host}:{port}/v1\n"
        f"  gRPC         {host}:{grpc_port}  (baton.v1.Inference)\n"
        f"  status       http://{host}:{port}/debug/status   /metrics   /debug/leaks\n\n"
        f"  curl http://{host}:{port}/v1/chat/completions -H 'content-type: application/json' \\\n"
        f"    -d '{body}'\n\n"
        "Ctrl-C stops it.",
        soft_wrap=True,
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
