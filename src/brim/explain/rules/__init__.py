"""Rules: facts to suspicions. Each is a function of an `Incident`, and none knows of another.

How sure a rule is: 0.9 where a source says it in words, 0.8 where one place in a server or one figure decides it, 0.6
where it is the usual reason for what is seen. `brim.explain.diagnose` chooses among them.
"""

SAID, PLACED, USUAL, WEAK = 0.9, 0.8, 0.6, 0.4
