"""Sizing: accelerators for a load, with memory, rooflines, forecasts and cost."""
