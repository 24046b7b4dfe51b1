"""Requests and their sequences: records without behaviour."""
