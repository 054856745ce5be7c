"""The ranks of a replica, their groups along each axis, and their messages."""
