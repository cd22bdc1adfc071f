"""Errors meant for a person."""


class UserError(Exception):
    """Bad input from a person: one line that says what is wrong, where, and what to do; the command exits with 2.

    A subclass with other arguments than the message needs `__reduce__`: errors come back from workers by pickle.
    """
