"""Errors, progress bars and files, as a terminal shows them."""
