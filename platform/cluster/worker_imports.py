"""What the process of every actor imports, its worker as soon as it is started.

Ray starts workers while Serve's controller comes up, which leaves cores idle; otherwise they would
wait to be told whose they are. Named in `local_cluster.py`.
"""

from __future__ import annotations

import importlib

from baton.core.home import settle_home
from baton.platform.machine.interpreter import collector_at_rest

settle_home()
with collector_at_rest():
    importlib.import_module("ray.serve._private.replica")
