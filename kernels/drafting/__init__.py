"""Looks up draft tokens that followed the same tokens earlier."""
