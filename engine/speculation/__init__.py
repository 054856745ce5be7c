"""Who guesses tokens ahead, and how many."""
