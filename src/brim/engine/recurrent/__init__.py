"""Recurrent layers: their states in slots, and their mixers on packed rows."""
