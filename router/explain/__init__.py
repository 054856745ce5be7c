"""Records of routing decisions and their outcomes."""
