"""How requests get their places: admitted in turn, in line for prefill, opened on replicas."""
