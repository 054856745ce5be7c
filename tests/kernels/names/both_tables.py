"""The two tables of holders: compiled, and in dicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from baton.kernels.cpu.library import library
from baton.kernels.names.holder_table import HolderTable, ReferenceTable
from baton.kernels.names.holder_table_cpu import CompiledTable

found = library()
TABLES: Sequence[Callable[[], HolderTable]] = (
    (ReferenceTable,) if found is None else (ReferenceTable, partial(CompiledTable, found))
)
