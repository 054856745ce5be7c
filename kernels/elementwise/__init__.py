"""One item in, one item out: gates, activations, sums, rows taken."""
