"""What a caller wants the output to look like, as a grammar."""
