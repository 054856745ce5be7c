"""The ranks of a replica, their groups along each axis, and what they say to each other."""
