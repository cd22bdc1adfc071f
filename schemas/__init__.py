"""The record of every stage boundary and the JSON schema of every answer a language model gives.

One definition validates a record, types its Parquet columns and constrains decoding: change a field here and the stages
and tests that use it say so.
"""
