"""The applications that Ray Serve runs: described, listed, changed one at a time."""
