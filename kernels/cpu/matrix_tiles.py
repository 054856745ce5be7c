"""Whether products use the matrix tiles of the CPU (AMX), and the word for what they round by them.

Decided when the library is loaded, for the whole process: where the CPU has tiles, the system lets
the process have them and a self-check finds that they compute what they are defined to
(source/amx/). bfloat16 has other bits by tiles than by vectors; whole numbers are exact by both.
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
"""The value of KERNELS that forbids tiles, as for a fleet of which only some CPUs have them. The
name of a kind of CPU forbids them, too: no kind is defined by tiles."""


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
    """Use the CPU's tiles if that can be; the log says so, and if something is odd why not."""
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
    """Products go by `wanted` from now on, or by vectors if the answer is no.

    No operator may run meanwhile, and a model that was loaded before has the name of another.
    """
    answer = Answer(library.baton_use_tiles(int(wanted)))
    _of_process["tiles"] = wanted if answer is Answer.IN_USE else Tiles.NONE
    return answer


def tiles_in_use() -> Tiles:
    return _of_process["tiles"]
