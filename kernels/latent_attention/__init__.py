"""From queries and what heads share (latents, compressed tokens) to what was attended."""
