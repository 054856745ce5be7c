"""All code that uses Ray."""
