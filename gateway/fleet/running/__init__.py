"""Requests that have a place: their attempts, one after the other, and what these used."""
