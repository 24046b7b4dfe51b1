"""From what was asked to tokens: templates, tokenizers and images, in a process of their own."""
