"""A request inside the engine, and what it is answered."""
