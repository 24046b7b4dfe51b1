"""Conversations over an engine: turns, their prompt, and what gives way when they grow too long."""
