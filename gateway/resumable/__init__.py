"""Streams that outlive their connections."""
