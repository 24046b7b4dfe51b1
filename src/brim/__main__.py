"""`python -m brim`: the command, where its script is not on the path."""

from brim.cli.main import main

main()
