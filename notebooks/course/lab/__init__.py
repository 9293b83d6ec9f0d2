"""Instruments and pictures."""
