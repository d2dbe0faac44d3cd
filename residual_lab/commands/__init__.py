"""One module a command, each with ``main(arguments: list[str]) -> int``, the exit status."""
