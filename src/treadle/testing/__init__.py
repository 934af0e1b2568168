"""Treadle's testing kit."""
