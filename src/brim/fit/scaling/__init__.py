"""Learned memory scaling: from a few measured steps to laws that are never below what a step takes."""
