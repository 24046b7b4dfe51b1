"""Keys and values in fixed-size blocks: who holds which block, and the tensors behind them."""
