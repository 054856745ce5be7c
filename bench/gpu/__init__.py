"""Checks and times every GPU kernel, and whole passes: `python -m bench.gpu`."""
