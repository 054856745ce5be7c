"""One short file a family, on one shared skeleton."""
