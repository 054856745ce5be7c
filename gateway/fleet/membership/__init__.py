"""Which replicas there are: the registry's snapshots, failed starts, and caches not known yet."""
