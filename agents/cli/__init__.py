"""`fyke …`: the command line."""
