"""Kernels on CPUs: C++ operators, how they are built and called, and the tape that plays many."""
