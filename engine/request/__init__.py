"""A request inside the engine, and its answers."""
