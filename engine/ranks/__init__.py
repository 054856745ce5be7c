"""Passes that several ranks compute together."""
