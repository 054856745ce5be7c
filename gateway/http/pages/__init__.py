"""Web pages: front page, console, API documentation."""
