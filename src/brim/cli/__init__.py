"""The command line: one file per command. Only here are the environment read and errors turned into exit codes."""
