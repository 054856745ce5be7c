"""A load on any endpoint that speaks OpenAI's API, and what its answers took."""
