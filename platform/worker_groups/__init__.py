"""Sizes KubeRay worker groups by the numbers of replicas."""
