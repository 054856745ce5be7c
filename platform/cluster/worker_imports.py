"""Modules that every prestarted worker imports.

Ray starts workers while Serve's controller starts, when cores are idle. Referenced in
`local_cluster.py`.
"""

from __future__ import annotations

import importlib

from baton.core.home import settle_home
from baton.platform.machine.interpreter import collector_at_rest

settle_home()
with collector_at_rest():
    importlib.import_module("ray.serve._private.replica")
