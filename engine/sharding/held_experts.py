"""Expert parallelism: which whole experts a rank holds, and on which ranks all others are.

    expert parallel 1     each rank of a tensor group has a slice of every expert
    more                  each rank has some whole experts, in slots: expert_slots.py

All ranks of a tensor group have the same tokens. Each rank computes the pairs of token and expert
that go to its own experts, and the all-reduce that follows a feed-forward layer anyway adds them
up.
"""

from __future__ import annotations

import platform
from array import array
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import accumulate, groupby
from pathlib import Path

import torch
from torch import Tensor, nn

from baton.core.errors import InvalidConfig
from baton.engine.layers.moe import Experts
from baton.engine.mesh.expert_map import ExpertMap, num_slots, spread
from baton.engine.mesh.mesh import Mesh
from baton.engine.mesh.ranks import MeshGroups, RankGroup, Ranks
from baton.engine.models.config.model_config import ModelConfig
from baton.engine.sharding.expert_balance import Machines
from baton.engine.sharding.expert_moves import move_weights
from baton.engine.sharding.placement import WeightPlacement
from baton.kernels.experts.expert_slots import ExpertSlots

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def check_experts(config: ModelConfig, mesh: Mesh) -> None:
    """Raise InvalidConfig if `mesh` asks for expert parallelism and the model has no experts, the
    number of ranks is neither that of a tensor group nor that of all data-parallel groups, or
    experts do not fit into slots (`num_slots`)."""
    if mesh.expert == 1:
        return
    mixtures = [layer.moe for layer in config.layers if layer.moe is not None]
    if not mixtures:
        raise InvalidConfig(f"expert parallel {mesh.expert}: this model has no experts")
    for moe in mixtures:
        num_slots(moe.routing.num_experts, mesh.expert, mesh.redundant_experts)
    if mesh.expert not in (mesh.tensor, mesh.tensor * mesh.data):
        raise InvalidConfig(
            f"expert parallel {mesh.expert}: experts are spread over the {mesh.tensor} ranks of a "
            f"tensor group or over the {mesh.tensor * mesh.data} ranks of all data-parallel "
            "groups; set parallel.expert to one of both numbers"
        )


class HeldExperts:
    """The experts of one rank's model, by module name."""

    def __init__(self, model: nn.Module, config: ModelConfig, groups: MeshGroups) -> None:
        """A collective: all ranks that experts are spread over call it at the same time."""
        mesh, self._ranks = groups.mesh, groups.expert
        self.modules: dict[str, Experts] = {}
        self.maps: dict[str, ExpertMap] = {}
        """The present placement of experts, by module name."""
        self.machines = Machines()
        self.start: dict[int, ExpertMap] = {}
        """The initial placement of experts, by layer of the whole model."""
        self._counts = groups.place.tensor == 0  # all tensor ranks see the same pairs: one counts
        if mesh.expert == 1:
            return
        routings = {i: layer.moe.routing for i, layer in enumerate(config.layers) if layer.moe}
        for layer, routing in routings.items():
            self.start[layer] = spread(routing.num_experts, mesh.expert, mesh.redundant_experts)
        for name, module in model.named_modules():
            if isinstance(module, Experts):
                self.modules[name] = module
                self.maps[name] = spread(module.num_experts, mesh.expert, mesh.redundant_experts)
        choosing = next(iter(routings.values())).groups
        self.machines = Machines(
            num_machines=num_machines(groups.expert),
            num_groups=1 if choosing is None else choosing.num_groups,
        )

    def own(self, placements: Sequence[WeightPlacement]) -> list[WeightPlacement]:
        """`placements` without experts that this rank does not hold; an expert that it holds is
        placed in its slot."""
        if not self.maps:
            return list(placements)
        slots = {
            name: {expert: slot for slot, expert in enumerate(found.of_rank(self._ranks.rank))}
            for name, found in self.maps.items()
        }
        found = []
        for placement in placements:
            of_layer = slots.get(placement.target.rpartition(".")[0])
            if of_layer is None:
                found.append(placement)
            elif placement.expert in of_layer:
                found.append(replace(placement, slot=of_layer[placement.expert]))
        return found

    def join(self, device: str) -> None:
        """Give the model's modules their tables of slots, on `device`."""
        for name, module in self.modules.items():
            found = self.maps[name]
            starts, slots = tables(found)
            module.slots = ExpertSlots(
                starts=starts.to(device),
                slots=slots.to(device),
                first=self._ranks.rank * found.slots_per_rank,
                count=found.slots_per_rank,
                loads=torch.zeros(found.num_experts, dtype=torch.int64, device=device),
            )

    def tally(self) -> array[int]:
        """Pairs by expert since the last call, for all layers of the whole model, layer after
        layer. They are 0 for layers of other pipeline stages, and on all but the first rank of each
        tensor group, so that the sum over ranks is right."""
        words = array("q")
        for layer, found in self.start.items():
            module = self._of_layer(layer)[1]
            if module is None or module.slots is None or not self._counts:
                words.extend([0] * found.num_experts)
            else:
                words.extend(module.slots.loads.tolist())
                module.slots.loads.zero_()
        return words

    def move(self, layer: int, experts: Sequence[int]) -> None:
        """Move the experts of a layer so that slot i, over all ranks, holds `experts`[i]. A
        collective: all ranks call it at the same time. Raises RuntimeError if one of them is gone.
        """
        name, module = self._of_layer(layer)
        if module is None:  # the layer belongs to another pipeline stage
            return
        assert module.slots is not None and isinstance(self._ranks, RankGroup)
        old = self.maps[name]
        new = replace(old, experts=tuple(experts))
        move_weights(module, self._ranks, old, new)
        self.maps[name] = new
        starts, slots = tables(new)
        module.slots.starts.copy_(starts)
        module.slots.slots.copy_(slots)

    def _of_layer(self, layer: int) -> tuple[str, Experts | None]:
        found = (each for each in self.modules.items() if each[0].startswith(f"blocks.{layer}."))
        return next(found, ("", None))


def tables(found: ExpertMap) -> tuple[Tensor, Tensor]:
    """`starts` and `slots` of `ExpertSlots`, int32: the slots of expert e are
    `slots[starts[e] : starts[e + 1]]`."""
    by_expert = found.slots_by_expert
    starts = accumulate((len(slots) for slots in by_expert), initial=0)
    slots = [slot for each in by_expert for slot in each]
    return torch.tensor(list(starts), dtype=torch.int32), torch.tensor(slots, dtype=torch.int32)


def num_machines(ranks: Ranks) -> int:
    """Number of machines, if each has the same number of consecutive ranks; otherwise 1. A
    collective over `ranks`."""
    if not isinstance(ranks, RankGroup):
        return 1
    own = int.from_bytes(blake2b(_machine().encode(), digest_size=7).digest())
    found = [machine for (machine,) in ranks.gather(array("q", (own,)))]
    runs = [len(list(run)) for _, run in groupby(found)]
    return len(runs) if len(set(runs)) == 1 and len(runs) == len(set(found)) else 1


def _machine() -> str:
    """A name of this machine. On Linux it is the same in all containers of a machine."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return platform.node()
