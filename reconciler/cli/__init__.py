"""The command line: each command is loaded only when it is used.

``main`` knows the commands' names and nothing else, so that ``reconciler --help`` answers at once.
Commands that send one message are in ``requests``, those about the past in ``past``; every other
command has a module of its name.
"""
