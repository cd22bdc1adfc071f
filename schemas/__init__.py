"""The record of every stage boundary; `Factors` is also the shape of the answer that a language model is asked for.

One definition validates a record, types its Parquet columns and constrains decoding: change a field here and the stages
and tests that use it say so.
"""
