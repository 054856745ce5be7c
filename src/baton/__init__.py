"""Baton: large language models on Ray, with prefill and decode on separate replica pools.

    core             words everybody uses: ids, messages, errors, clock
    proto            what travels between processes, and how messages become bytes
    kernels          one tensor operation a file
    engine           one model on one group of devices
    kv_transfer      the handoff of a prompt's KV cache from one replica to another
    replica_core     what replicas of both roles have in common: engine, thread and exchange
    prefill_service  the prefill role: engine and sender, wired
    decode_service   the decode role: engine, receiver and remote prefill, wired
    router           where a request runs; pure
    gateway          the process that faces clients
    platform         what operators run: config, deploy, registry, CLI
    client           the Python SDK over gRPC

Every subpackage is a link to the top-level folder of its name.
"""
