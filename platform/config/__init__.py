"""The deployment as one tree."""
