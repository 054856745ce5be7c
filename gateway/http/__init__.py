"""The HTTP face: OpenAI's API and its common extras."""
