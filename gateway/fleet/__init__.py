"""The replicas as one gateway sees them: which there are, what they hold, where a request goes."""
