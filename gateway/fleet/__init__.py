"""The replicas, seen from one gateway: who they are, what they hold, where a request goes."""
