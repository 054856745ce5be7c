"""The values of the Helm chart as one tree; its files are made of it."""
