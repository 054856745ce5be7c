"""Costs of parallel layouts, computed before any rank starts."""
