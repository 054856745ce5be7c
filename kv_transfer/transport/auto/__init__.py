"""Each way to a peer measured, and the fastest taken."""
