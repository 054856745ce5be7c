"""Published ways to choose a replica, and our own: one a file, one line of arithmetic each."""
