"""Diagnosis of machines and deployments."""
