"""The command line: one module a command, each loaded only when its command is used.

``main`` knows the commands' names and nothing else, so that ``reconciler --help`` answers at once.
"""
