"""What browsers are shown: front page, console, the description of the API."""
