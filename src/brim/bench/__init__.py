"""Load for any OpenAI-compatible server: who asks for what and when, what came back, and what that says."""
