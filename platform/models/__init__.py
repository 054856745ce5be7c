"""Models found: folders, hub ids, the demo."""
