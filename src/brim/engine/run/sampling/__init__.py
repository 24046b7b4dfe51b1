"""From logits to tokens: draws, penalties and the tokens that they look at, grammars, the largest logits."""
