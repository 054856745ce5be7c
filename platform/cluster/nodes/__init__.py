"""Nodes of Ray: models, places for replicas, departure."""
