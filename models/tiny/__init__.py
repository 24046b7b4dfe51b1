"""`brim-tiny` and its draft: their data, tokenizer, training, distillation and evaluation."""
