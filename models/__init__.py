"""Models that the project trains itself."""
