"""Whether a deployment can work, and how well, told before traffic."""
