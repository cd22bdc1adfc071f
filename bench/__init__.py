"""What is fast and how large it is, measured: python -m bench.<name>."""
