"""Hugging Face model folders, read into our models."""
