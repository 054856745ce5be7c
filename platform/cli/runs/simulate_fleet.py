"""`baton simulate --decode`: simulates a fleet of prefill and decode replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from baton.core.errors import InvalidConfig
from baton.platform.cli.runs.simulate import (
    Job,
    Played,
    all_rows,
    loads_of,
    policies_of,
    read,
    run,
)
from baton.platform.observe.gateway_pages import GatewayPages
from baton.platform.simulator.fleet.devices import (
    Devices,
    devices_in,
    devices_of,
    measured_device,
)
from baton.platform.simulator.fleet.experiment import FleetExperiment, play_fleet
from baton.platform.simulator.fleet.report import fleet_tree, show_fleet
from baton.platform.simulator.fleet.setup import FleetSetup, Part
from baton.platform.simulator.fleet.tenants import SimulatedTenant


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """Options of a fleet, besides those of every simulation."""

    num_prefill: int
    num_decode: int
    num_gateways: int
    device: str
    api_key: str | None = None
    """If the gateway that `device` names asks for one."""
    ca_file: Path | None = None
    without: frozenset[Part]
    tenants: Sequence[SimulatedTenant] = ()

    def devices(self) -> Devices:
        """Raises InvalidConfig or Unavailable."""
        return devices_from(self.device, self.api_key, self.ca_file)


def run_fleet(job: Job, fleet: FleetOptions) -> None:
    """Raises InvalidConfig that names the option, Unavailable, or BatonError."""
    run(job, partial(_play, fleet))


def _play(fleet: FleetOptions, job: Job, console: Console) -> Played:
    if job.prefill_rate is not None:
        raise InvalidConfig(
            "--prefill-rate: the speed of a fleet comes from --device; leave it out"
        )
    devices = fleet.devices()
    experiment = FleetExperiment(
        policies=policies_of(job.policies),
        loads=loads_of(job),
        traces=[read(file) for file in job.traces],
        num_seeds=job.num_seeds,
        setup=FleetSetup(
            num_prefill=fleet.num_prefill,
            num_decode=fleet.num_decode,
            num_gateways=fleet.num_gateways,
            prefill=devices.prefill,
            decode=devices.decode,
            links=devices.links,
            without=fleet.without,
            max_waiting=job.setup.max_waiting,
            slo_ttft_s=job.setup.slo_ttft_s,
            slo_classes=job.setup.slo_classes,
            tenants=fleet.tenants,
        ),
    )
    rows = all_rows(experiment.cases(), job, play_fleet)
    show_fleet(console, experiment, rows)
    return rows, fleet_tree(experiment, rows)


def devices_from(source: str, api_key: str | None = None, ca_file: Path | None = None) -> Devices:
    """Raises InvalidConfig that says what --device may be."""
    if not source:
        raise InvalidConfig(
            "--device: it is missing; give a JSON file, a gateway's URL, or FILE.csv:MACHINE of "
            "measured steps"
        )
    if source.startswith(("http://", "https://")):
        return devices_of(GatewayPages(source, api_key, ca_file).get("/debug/status"), source)
    name, _, machine = source.partition(":")
    try:
        if machine:
            device = measured_device(Path(name), machine)
            return Devices(prefill=device, decode=device)
        return devices_in(Path(name).read_bytes(), name)
    except OSError as error:
        raise InvalidConfig(f"--device {name}: {error.strerror}") from None
