"""Live deployments: gateway, start, idle cost, handoffs, and latency under load."""
