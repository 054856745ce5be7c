"""The engine on a CPU: its steps, its scheduler, tool grammars, and how cost grows with load."""
