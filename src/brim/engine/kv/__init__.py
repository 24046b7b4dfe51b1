"""Keys and values in fixed-size blocks: which request holds which block, and the tensors."""
