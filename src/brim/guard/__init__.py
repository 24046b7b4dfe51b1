"""Policies: what may start, what gives way. Pure functions of records."""
