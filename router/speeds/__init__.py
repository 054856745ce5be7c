"""How fast replicas and the links between them are, and how far off predictions were."""
