"""Starts the application in Ray, and detects when it cannot come up.

    gateway    `ports` answers when it listens, `lacks` names what it waits for
    registry   reports the replicas' progress, or why one failed
    Serve      reports when it gives up, and when all gateways run

Ray is imported inside functions, since its environment must be set first.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from baton.core.errors import DeadlineExceeded, InvalidConfig, Unavailable
from baton.core.replicas import Membership, counts_by_role
from baton.core.wording import count_of
from baton.gateway.requests.readiness import missing
from baton.platform.cli.runs.background import Found, in_background
from baton.platform.cli.terminal.replica_news import News, ReplicaNews
from baton.platform.cli.terminal.start_report import StartReport
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.config.live import Plain

log = logging.getLogger(__name__)

Ports = tuple[int, int, int]
"""Ports of HTTP, gRPC and the operators' API; 0 where there is none."""

PATIENCE_S = 0.5
"""Seconds between looks at the registry while replicas start."""
LOOK_S = 0.1
"""The most seconds for one look, which delays the wait."""
GONE_LOOKS = 3
"""Looks in a row without the application: a Serve controller that is being replaced may list none
for a moment."""
SERVE_TIMEOUT_S = 5.0
"""Within which Serve's controller must say whether it has the application."""
STATUS_PERIOD_S = 1.0
"""Seconds between questions whether Serve has given up."""
SILENCE_S = 120.0
"""Seconds without an answer of Serve's controller after which a start is given up."""


def deploy(
    config: DeploymentConfig,
    folder: Path | None,
    report: StartReport,
    watch: Callable[[], None] = lambda: None,
) -> Ports:
    """Return the ports once requests are answered; `watch` is called periodically. Raises
    RuntimeError if it cannot come up, and InvalidConfig if the application's name or a port is
    taken."""
    from ray import serve

    from baton.platform.cluster.applications.applications import check_ports, served, start_serve
    from baton.platform.cluster.deploy import build_app

    name = config.ray.app_name
    if config.planner.sets_counts:
        raise InvalidConfig(
            "planner.mode: `baton serve` cannot change its numbers of replicas; use `baton "
            "deploy`, or set planner.mode to observe"
        )
    if config.ray.address:
        if name in served():
            raise InvalidConfig(
                f"ray.app_name: this cluster already has an application {name!r}; give another "
                "name with --app-name, or change that one with `baton deploy`"
            )
        check_ports(config)
    report.enter(f"starting {_counted(config)}")

    is_given_up = threading.Event()

    def hand_over() -> None:
        start_serve(is_own_cluster=not config.ray.address)
        target = serve.RunTarget(build_app(config, folder), name=name, route_prefix=None)
        if not is_given_up.is_set():  # or it would begin after it was ended
            serve.run_many([target], wait_for_applications_running=False)

    try:
        _in_time(hand_over)
    except BaseException:  # a signal to stop, too
        is_given_up.set()
        raise
    return come_up(config, report, watch)


def come_up(
    config: DeploymentConfig, report: StartReport, watch: Callable[[], None] = lambda: None
) -> Ports:
    """Wait for an application that was handed to Serve; raises as `deploy`."""
    from ray import serve

    from baton.platform.config.live import GATEWAY, REGISTRY

    name = config.ray.app_name
    application = _Application(name)
    application.look()
    while not application.has(GATEWAY):  # a document is built first
        watch()
        time.sleep(LOOK_S)
        application.look()
    gateway, membership = _in_time(
        lambda: (
            serve.get_deployment_handle(GATEWAY, name),
            serve.get_deployment_handle(REGISTRY, name).membership,
        )
    )
    registry = _Answer(membership.remote)
    status_at = time.monotonic() + STATUS_PERIOD_S

    def look() -> None:
        nonlocal status_at
        if registry.has_come(LOOK_S):
            follow(registry.take(), config, report)
        if time.monotonic() > status_at:
            watch()
            application.look()
            status_at = time.monotonic() + STATUS_PERIOD_S

    ports: Ports = wait_for(gateway.ports.remote, look)
    report.enter(f"gateway listening on {config.gateway.host}:{ports[0]}, gRPC on :{ports[1]}")
    while lacking := wait_for(gateway.lacks.remote, look):
        report.wait_for(lacking)
    is_one_of_several = config.gateway.replicas > 1 or config.ray.address != ""
    application.look()
    while is_one_of_several and not application.runs():  # it may be replaced meanwhile
        report.wait_for("Serve to bring up, or to replace, the others")
        look()
        time.sleep(PATIENCE_S)
        application.look()
    return ports


class Watch:
    """Says which replicas went, came and flipped since the last look, as the registry has it, and
    whether anything serves at all."""

    def __init__(self, config: DeploymentConfig) -> None:
        from ray import serve

        from baton.platform.config.live import REGISTRY

        self._name = config.ray.app_name
        registry = serve.get_deployment_handle(REGISTRY, self._name)
        self._known = _Answer(registry.membership.remote)
        self._news = ReplicaNews(config.wanted_replicas)
        self._num_missed = 0
        """Looks in a row in which neither the registry nor Serve knew of the application."""
        self._is_serve_silent = False

    def look(self) -> None:
        """Raises Unavailable where the application has ended."""
        for one in self._since_last_look():
            log.log(one.level, "%s", one.text)

    def _since_last_look(self) -> list[News]:
        try:
            if self._known.has_come(LOOK_S):
                self._num_missed, self._is_serve_silent = 0, False
                return self._news.since_last_time(self._known.take())
        except Exception as error:  # of Ray, whose head may be away: no reason to end what serves
            log.debug("the registry could not be asked: %s", error)
        self._num_missed = self._num_missed + 1 if self._is_missing() else 0
        if self._num_missed == GONE_LOOKS:
            raise Unavailable(
                f"the application {self._name} has been ended, by `baton undeploy` or through Ray: "
                "nothing serves any more"
            )
        return []

    def _is_missing(self) -> bool:
        from baton.platform.cluster.applications.applications import served

        was_silent, self._is_serve_silent = self._is_serve_silent, False
        try:
            return self._name not in served(SERVE_TIMEOUT_S)
        except DeadlineExceeded:
            self._is_serve_silent = True
            if not was_silent:
                log.warning(
                    "neither the registry nor Serve's controller answers; the latter was given "
                    "%g s. What runs goes on, and both are asked again",
                    SERVE_TIMEOUT_S,
                )
        except Exception as error:
            log.debug("Serve could not be asked: %s", error)
        return False


def wait_for(ask: Callable[[], Any], look: Callable[[], None]) -> Any:
    """The answer of an actor; `look` is called periodically while waiting."""
    answer = _Answer(ask)
    while not answer.has_come(PATIENCE_S):
        look()
    return answer.take()


def follow(known: Membership, config: DeploymentConfig, report: StartReport) -> None:
    """Report the replicas' progress. Raises InvalidConfig for a failure that a retry would
    repeat."""
    for one in known.starting:
        if one.is_final:
            raise InvalidConfig(f"{one.replica_id} failed while {one.stage}: {one.failure}")
    trouble = {info: "" if info.is_ready else "draining" for info in known.replicas}
    lacking = missing(config.wanted_replicas, trouble, known.starting)
    report.see(known.replicas, known.starting, lacking)


class _Answer:
    """The answer of an actor that may not exist yet, or be replaced; then the question is
    repeated."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self._ask = ask
        self._response: Any = None
        self._value: Any = None

    def has_come(self, patience_s: float) -> bool:
        from ray.exceptions import RayError

        self._response = self._response or self._ask()
        try:
            self._value = self._response.result(timeout_s=patience_s)
        except TimeoutError:
            return False
        except RayError:
            self._response = None
            return False
        except Exception:
            self._response = None
            raise
        return True

    def take(self) -> Any:
        """Take the answer, and reset for another one."""
        self._response = None
        return self._value


def _counted(config: DeploymentConfig) -> str:
    replicas = counts_by_role(config.wanted_replicas)
    return f"{replicas}, {count_of(config.gateway.replicas, 'gateway')}"


class _Application:
    """The application that starts, as Serve has it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._known: Plain = {}
        self._answered_at = time.monotonic()
        self._is_serve_silent = False

    def look(self) -> None:
        """Ask Serve. Raises RuntimeError where it has given up, and DeadlineExceeded once its
        controller has not answered for SILENCE_S; until then a silence is only a warning."""
        from baton.platform.cluster.applications.applications import served, silence_of_serve

        try:
            self._known = served(SERVE_TIMEOUT_S).get(self._name, {})
        except DeadlineExceeded as error:
            silence_s = time.monotonic() - self._answered_at
            if silence_s > SILENCE_S:
                raise DeadlineExceeded(silence_of_serve(silence_s)) from None
            if not self._is_serve_silent:
                log.warning("%s; it has %g s in all", error, SILENCE_S)
            self._is_serve_silent = True
            return
        self._answered_at = time.monotonic()
        self._is_serve_silent = False
        if self._known.get("status") == "DEPLOY_FAILED":
            raise RuntimeError(f"the replicas did not come up: {self._reason()}")

    def has(self, deployment: str) -> bool:
        return deployment in self._known.get("deployments", {})

    def runs(self) -> bool:
        return self._known.get("status") == "RUNNING"

    def _reason(self) -> str:
        """Serve's messages of failed deployments, without tracebacks."""
        failed = {
            name: details["message"]
            for name, details in self._known["deployments"].items()
            if details["status"] == "DEPLOY_FAILED"
        }
        return "; ".join(f"{name}: {cause_of(text)}" for name, text in failed.items()) or cause_of(
            self._known["message"]
        )


def _in_time(ask: Callable[[], Found]) -> Found:
    """What a call of Serve's returns that may wait for its controller for ever. Raises
    DeadlineExceeded after SILENCE_S, and what the call raises."""
    from baton.platform.cluster.applications.applications import silence_of_serve

    began_at = time.monotonic()
    try:
        return in_background(ask).result(SILENCE_S)
    except TimeoutError:  # ours, or the call's own
        raise DeadlineExceeded(silence_of_serve(time.monotonic() - began_at)) from None


def cause_of(message: str) -> str:
    """The relevant sentence of Serve's message about a replica that fails to start."""
    _, _, error = message.rpartition("Error:\n")
    lines = [line for line in (error or message).splitlines() if line.strip()]
    if any("Traceback" in line for line in lines):
        return next(line for line in reversed(lines) if not line.startswith(" ")).strip()
    if detail := re.search(r"Worker exit detail: (.*?\.)(?: |$)", message):
        return f"its process died: {detail[1]}"
    return lines[0].strip() if lines else "Serve gives no reason"
