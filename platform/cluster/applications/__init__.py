"""Ray Serve applications: their documents, and changes, one at a time."""
