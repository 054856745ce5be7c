"""How many replicas of each role: from what arrives, how long steps take, and what was promised."""
