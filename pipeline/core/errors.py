"""Errors meant for a person."""


class UserError(Exception):
    """Bad input from a person: one line that says what is wrong, where, and what to do; the command exits with 2.

    A subclass with other arguments than the message needs `__reduce__`: errors come back from workers by pickle.
    """


def one_line(error: object, most: int = 200) -> str:
    """What an error, or a library's text, says, as one line of at most `most` characters."""
    return " ".join(str(error).split())[:most]
