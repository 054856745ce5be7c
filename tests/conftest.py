"""For all tests: one thread of arithmetic, because tiny tensors on a busy machine want no more, and
Triton's interpreter where there is no GPU. Of a wide product, `make test` runs some rows. What is
imported and collected is no garbage, and is not looked through for any."""

from __future__ import annotations

import faulthandler
import functools
import gc
import importlib
import os
import sys
import zlib
from collections import defaultdict
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tests.covering_rows import covering
from tests.kernels.gpu.quick_interpreter import quicken

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin take others' cores

# Triton decides when a kernel is defined whether it will be compiled or interpreted.
if not os.path.exists("/dev/nvidia0"):
    os.environ.setdefault("TRITON_INTERPRET", "1")

# No test asserts a time, and these of hypothesis' own would: machines are shared.
settings.register_profile(
    "baton",
    max_examples=50,  # others each time
    deadline=None,
    derandomize=False,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("baton")


@pytest.fixture(autouse=True)
def _draws_of_its_own(request: pytest.FixtureRequest) -> None:
    """What a test draws does not depend on which others its worker has run."""
    if (torch := sys.modules.get("torch")) is not None:
        seed = zlib.crc32(request.node.nodeid.encode())
        torch.random.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():  # or it would note a stack for each device that is not
            torch.cuda.manual_seed_all(seed)


def pytest_runtest_setup() -> None:
    if "triton.runtime.interpreter" in sys.modules:
        quicken()


TEARDOWN_LIMIT_S = 900.0
_stderr = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_stderr] = os.dup(2)  # before what tests write there is captured


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """What `timeout` has ended once may hang again here, where nothing ends it: an event loop waits
    for its threads. All stacks are printed then, and the run is over."""
    faulthandler.dump_traceback_later(TEARDOWN_LIMIT_S, exit=True, file=item.config.stash[_stderr])
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


_places = pytest.StashKey[dict[str, int]]()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Each worker begins to collect at another folder: what one of them has compiled, in a fresh
    clone, the others find."""
    report = yield
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if worker and collector.path == Path(__file__).parent and report.result:
        found = list(report.result)
        collector.config.stash[_places] = {node.name: at for at, node in enumerate(found)}
        first = len(found) * int(worker) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        report.result = [*found[first:], *found[:first]]
    return report


@pytest.hookimpl(tryfirst=True)  # before -m is applied
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as `wide` the rows that add little to others of their test; some say it themselves."""
    if places := config.stash.get(_places, None):
        items.sort(key=lambda item: places[item.nodeid.split("/")[1].partition("::")[0]])
    rows_of: dict[tuple[object, str], list[pytest.Function]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("wide"):
            continue
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            rows_of[item.parent, item.originalname].append(item)
    for rows in rows_of.values():
        # One id a `parametrize`; what is public counts each row of plain parameters anew.
        for row, is_chosen in zip(rows, covering([r.callspec._idlist for r in rows]), strict=True):
            if not is_chosen:
                row.add_marker(pytest.mark.wide)


gc.disable()  # while modules are imported and tests collected: two million objects that stay


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


class _SharedContext:
    """One TLS context for all clients that trust the default authorities."""

    def __init__(self, create: Callable[..., object]) -> None:
        self._create = create
        self._shared: dict[tuple[object, ...], object] = {}

    def __call__(
        self, verify: object = True, cert: object = None, trust_env: bool = True
    ) -> object:
        make = functools.partial(self._create, verify=verify, cert=cert, trust_env=trust_env)
        if verify is not True or cert is not None:
            return make()
        key = (trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]


def _share_contexts() -> None:
    """Making an HTTP client reads every authority, which takes 25 ms; tests make thousands."""
    for package in ("httpx", "httpx2"):
        module: Any = importlib.import_module(f"{package}._transports.default")
        module.create_ssl_context = _SharedContext(module.create_ssl_context)


_share_contexts()
