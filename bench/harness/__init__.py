"""What benchmarks share: deployments, clients, a small model, and the report."""
