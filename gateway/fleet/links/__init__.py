"""The streams to replicas: requests and tokens, reports and credits, cache events, commands."""
