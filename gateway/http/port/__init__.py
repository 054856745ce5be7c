"""An HTTP port: who comes in, how long one waits for whom, and how it ends."""
