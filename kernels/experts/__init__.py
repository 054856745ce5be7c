"""MoE routing and expert products."""
