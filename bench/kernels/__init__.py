"""Times every CPU kernel, beside limits measured at the same time: `python -m bench.kernels`."""
