"""Prompts to vectors: embeddings, labels, scores."""
