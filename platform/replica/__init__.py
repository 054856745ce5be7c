"""One replica, ready to serve."""
