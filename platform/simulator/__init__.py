"""A load against replicas that are arithmetic: the gateway's own router, without machines."""
