"""Batches: requests in a file, answered into another when nobody else needs the replicas."""
