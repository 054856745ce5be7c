"""Terminal output: errors, progress bars, tables."""
