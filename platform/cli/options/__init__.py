"""Options made from the types they fill."""
