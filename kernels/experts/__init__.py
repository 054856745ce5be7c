"""Routing, and products by experts."""
