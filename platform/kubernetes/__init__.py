"""Kubernetes: the chart's values, and predictions of KubeRay's upgrades."""
