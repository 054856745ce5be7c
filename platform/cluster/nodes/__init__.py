"""Nodes of Ray: the model that each has, the replicas that it holds, how it leaves."""
