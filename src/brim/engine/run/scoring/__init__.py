"""How likely the tokens of prompts were."""
