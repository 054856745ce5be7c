"""How many accelerators a load takes: memory, rooflines, replicas, forecasts and their cost."""
