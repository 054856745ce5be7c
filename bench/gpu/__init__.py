"""Every kernel of the GPU, checked and timed, and whole passes: `python -m bench.gpu`."""
