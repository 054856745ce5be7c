"""Runs the first measurements of docs/performance.md, which names the others; prints Markdown.

    python -m bench [engine.step_overhead] [engine.growth] [speculation.speedup] [serving.gateway]
                    [serving.handoff] [serving.startup] [--quick]

Takes half an hour, half of it for speculation. `--quick` takes few samples: a test that everything
works, not results to quote.
"""

from __future__ import annotations

from collections.abc import Callable

import psutil

from bench.engine import growth, step_overhead
from bench.harness.command_line import benchmark_parser
from bench.harness.report import surroundings
from bench.serving import gateway, handoff, startup
from bench.speculation import speedup

LOOK_AROUND_S = 2.0

SECTIONS: dict[str, tuple[str, Callable[[bool], str]]] = {
    "engine.step_overhead": (
        "A step of the engine",
        lambda quick: step_overhead.report(is_quick=quick),
    ),
    "engine.growth": ("How cost grows", lambda quick: growth.report(is_quick=quick)),
    "speculation.speedup": ("Speculation", lambda quick: speedup.report(is_quick=quick)),
    "serving.gateway": ("Gateway and data plane", lambda quick: gateway.report(is_quick=quick)),
    "serving.handoff": (
        "A handoff",
        lambda quick: handoff.report(handoff.QUICK if quick else handoff.Setup()),
    ),
    "serving.startup": (
        "Starting, and doing nothing",
        lambda quick: startup.report(is_quick=quick),
    ),
}


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="few samples")
    arguments = parser.parse_args()
    if unknown := set(arguments.sections) - set(SECTIONS):
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}")
    print(surroundings(), flush=True)
    for name in arguments.sections or SECTIONS:
        title, report = SECTIONS[name]
        others = psutil.cpu_percent(LOOK_AROUND_S)
        print(
            f"\n## {title}\n\n`python -m bench.{name}`; just before it, other work took "
            f"{others:.0f}% of the cores.\n\n{report(arguments.quick)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
