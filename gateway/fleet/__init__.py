"""The replicas as one gateway sees them: membership, cached blocks, placement of requests."""
