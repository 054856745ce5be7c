"""A model run over the cache: in Python, from a tape, as a CUDA graph, or as an echo."""
