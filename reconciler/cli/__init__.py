"""The command line. Each command is imported only when it is used.

``main`` imports only the commands' names, so that ``reconciler --help`` responds quickly.
``requests`` contains the commands that send one message, and ``past`` the commands that show the
history. Every other command has its own module.
"""
