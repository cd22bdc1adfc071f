"""Arrow types read off the record models, so that a Parquet column is never described twice."""

from __future__ import annotations

import types
import typing
from typing import TYPE_CHECKING, Any, Literal, Union

from pydantic import BaseModel

if TYPE_CHECKING:
    import pyarrow as pa


def arrow_schema(model: type[BaseModel]) -> pa.Schema:
    """The Arrow schema of a record model: one column a field, in the order of the fields.

    A field is nullable exactly where its type allows None, in every shard alike.
    """
    import pyarrow as pa

    return pa.schema([_field(name, info.annotation) for name, info in model.model_fields.items()])


def _field(name: str, annotation: Any) -> pa.Field:
    import pyarrow as pa

    inner, nullable = _without_none(annotation)
    return pa.field(name, _type(inner), nullable=nullable)


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if typing.get_origin(annotation) in (Union, types.UnionType):
        members = [member for member in typing.get_args(annotation) if member is not type(None)]
        if len(members) != 1:
            raise TypeError(f"a record field may be one type or None, not {annotation}")
        return members[0], len(members) < len(typing.get_args(annotation))
    return annotation, False


def _type(annotation: Any) -> pa.DataType:
    import pyarrow as pa

    plain = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_(), bytes: pa.binary()}
    if annotation in plain:
        return plain[annotation]
    origin = typing.get_origin(annotation)
    if origin is Literal:
        return pa.string()
    if origin is tuple:
        return pa.list_(_field("item", typing.get_args(annotation)[0]))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return pa.struct([_field(name, info.annotation) for name, info in annotation.model_fields.items()])
    raise TypeError(f"no Arrow type for {annotation}")
