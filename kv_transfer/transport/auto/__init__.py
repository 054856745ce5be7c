"""Measures each transport to a peer, and takes the fastest."""
