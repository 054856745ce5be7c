"""The generations of a request: planned, run, streamed, traced."""
