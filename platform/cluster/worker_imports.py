"""Modules that every prestarted worker imports.

Ray starts workers while Serve's controller starts, when cores are idle. Referenced in
`local_cluster.py`.
"""

from __future__ import annotations

import importlib

from baton.core.home import set_home
from baton.platform.machine.interpreter import without_garbage_collection

set_home()
with without_garbage_collection():
    importlib.import_module("ray.serve._private.replica")
