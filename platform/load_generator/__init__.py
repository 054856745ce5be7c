"""A load generator for any endpoint with OpenAI's API."""
