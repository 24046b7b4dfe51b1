"""What pictures are made of: SVG elements, owners of tensors, stacks of bytes, charts and legends."""
