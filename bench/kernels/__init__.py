"""Each kernel of the CPU beside a limit of the same minutes: `python -m bench.kernels`."""
