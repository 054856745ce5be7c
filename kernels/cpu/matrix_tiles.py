"""Decides whether products use the matrix tiles of the CPU (AMX), and names their rounding.

The decision is made when the library is loaded, for the whole process: the CPU must have tiles, the
operating system must permit them, and a self-check must give the defined results (source/amx/).
bfloat16 products by tiles differ in bits from those by vectors; integer products are exact in both.
"""

from __future__ import annotations

import ctypes
import logging
import os
from enum import IntEnum

from baton.kernels.cpu.build import supported_targets

logger = logging.getLogger(__name__)

KERNELS = "BATON_CPU_KERNELS"
WITHOUT_TILES = "vectors"
"""The value of KERNELS that disables tiles, as for a fleet in which only some CPUs have them. The
name of a target disables them, too: no target includes tiles."""


class Tiles(IntEnum):
    """Kinds of matrix tiles: `Tiles` of source/amx/amx_product.h."""

    NONE = 0
    AMX = 1
    EMULATED = 2


class Answer(IntEnum):
    """Result of `baton_use_tiles`."""

    IN_USE = 0
    NOT_THERE = 1
    NOT_PERMITTED = 2
    WRONG = 3


_of_process = {"tiles": Tiles.NONE}


def choose_tiles(library: ctypes.CDLL) -> None:
    """Use the CPU's tiles if possible; the decision, and the reason of an unexpected one, is
    logged."""
    wanted = os.environ.get(KERNELS)
    if wanted == WITHOUT_TILES or wanted in supported_targets()[1:]:
        logger.info("%s=%s: no matrix tiles are used", KERNELS, wanted)
        return
    answer = use_tiles(library, Tiles.AMX)
    if answer is Answer.IN_USE:
        logger.info("products on the CPU use its matrix tiles (AMX)")
    elif answer is Answer.NOT_PERMITTED:
        logger.warning("the system does not let this process use matrix tiles (AMX): vectors are")
    elif answer is Answer.WRONG:
        logger.warning("the matrix tiles (AMX) of this CPU failed a self-check: vectors are used")


def use_tiles(library: ctypes.CDLL, wanted: Tiles) -> Answer:
    """Use `wanted` for all further products, or vectors if the answer is negative.

    No operator may run meanwhile, and models that were loaded before have another fingerprint.
    """
    answer = Answer(library.baton_use_tiles(int(wanted)))
    _of_process["tiles"] = wanted if answer is Answer.IN_USE else Tiles.NONE
    return answer


def tiles_in_use() -> Tiles:
    return _of_process["tiles"]
