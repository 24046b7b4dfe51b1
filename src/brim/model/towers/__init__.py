"""Vision and audio towers: their tensors, and the largest input their processors allow."""
