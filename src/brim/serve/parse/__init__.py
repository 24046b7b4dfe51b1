"""What a model writes, as what it means: content, reasoning, and calls of tools.

pieces.py     the parts of an answer, and a parser at work
source.py     text that grows, and marks in it
calls.py      a call written as JSON, while it is written
custom.py     calls whose input is a text
table.py      which formats there are, and which one a model writes
grammar.py    what an answer must look like, where it must: a call, or JSON behind the reasoning

One file for each format. Each is a generator that reads on as text comes, so what it makes of a text does not depend on
how the text was cut.
"""
