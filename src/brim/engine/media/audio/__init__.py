"""Audio of prompts: files read and resampled, and what the models of each family take of their processor's output."""
