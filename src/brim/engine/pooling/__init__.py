"""Models that embed texts or score pairs of them: no answers, no KV cache, one forward for each input.

requests.py   what is asked for, and what comes back
loading.py    from a folder to a model that can be run
heads.py      what is made of hidden states: pooling kinds, dense layers, scores
model.py      one batch, padded on the right: from token ids to vectors
queue.py      inputs that wait, and which of them make the next batch
worst.py      the batches that take the most memory
engine.py     the engine: sized, driven and rescued like the one that generates
"""
