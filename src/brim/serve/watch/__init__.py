"""A server watched once a second: how much it does (samples), and what happened (events). Bounded, whatever comes."""
