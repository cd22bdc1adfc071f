"""The networks: encoders, CMP, SeDA, and the losses they share.

`config`, `recipes` and `masking` are light; the other modules load torch, and most load transformers.
"""
