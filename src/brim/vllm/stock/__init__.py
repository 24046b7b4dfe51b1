"""Stock vLLM, sized without a plug-in: the advice of a fit, and two starts."""
