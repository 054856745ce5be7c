"""One model on several devices: who computes which share, and what they tell each other."""
