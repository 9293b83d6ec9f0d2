"""Instruments that look at the floors below."""
