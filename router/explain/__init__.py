"""What was decided for each request, and what came of it."""
