"""What each way to spread a model over ranks costs, before any of them starts."""
