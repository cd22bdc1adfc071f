from typing import Annotated, Literal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from pipeline.core.store import parquet_bytes, records_table
from schemas.arrow import arrow_schema
from schemas.records import Engine, PersonKeypoints, PoseRecord, Publication, Recaption, Rejection, SourceCaption


class Inner(BaseModel):
    number: float
    word: str | None


class Everything(BaseModel):
    text: str
    maybe: str | None
    count: int
    share: float
    flag: bool
    raw: bytes
    choice: Literal["a", "b"]
    items: tuple[Inner, ...]
    one: Inner | None


def test_a_field_is_nullable_exactly_where_its_type_allows_none():
    nullable = {field.name: field.nullable for field in arrow_schema(Everything)}
    assert nullable == {name: name in ("maybe", "one") for name in Everything.model_fields}
    inner = arrow_schema(Everything).field("items").type.value_field
    assert not inner.nullable
    assert [field.nullable for field in inner.type] == [False, True]


def test_columns_come_in_the_order_of_the_fields():
    assert arrow_schema(Everything).names == list(Everything.model_fields)


def test_each_python_type_has_its_arrow_type():
    types = {field.name: field.type for field in arrow_schema(Everything)}
    assert [types[name] for name in ("text", "count", "share", "flag", "raw", "choice")] == [
        pa.string(),
        pa.int64(),
        pa.float64(),
        pa.bool_(),
        pa.binary(),
        pa.string(),
    ]
    assert types["one"] == pa.struct([pa.field("number", pa.float64(), False), pa.field("word", pa.string())])


@pytest.mark.parametrize("annotation", [int | str, dict[str, int], list[int], set[int], Annotated[object, "x"]])
def test_a_type_without_an_arrow_type_is_refused(annotation):
    model = type("Odd", (BaseModel,), {"__annotations__": {"field": annotation}})
    with pytest.raises(TypeError):
        arrow_schema(model)


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers = st.floats(allow_nan=False, width=64)
inners = st.builds(Inner, number=numbers, word=st.none() | text)
everythings = st.builds(
    Everything,
    text=text,
    maybe=st.none() | text,
    count=st.integers(-(2**63), 2**63 - 1),
    share=numbers,
    flag=st.booleans(),
    raw=st.binary(max_size=20),
    choice=st.sampled_from(["a", "b"]),
    items=st.lists(inners, max_size=3).map(tuple),
    one=st.none() | inners,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(everythings, max_size=5))
def test_records_come_back_from_parquet_as_they_went_in(records):
    data = parquet_bytes(records_table(Everything, records))
    table = pa.parquet.read_table(pa.BufferReader(data))
    assert table.schema.equals(arrow_schema(Everything))
    assert [Everything.model_validate(row) for row in table.to_pylist()] == records


engines = st.builds(Engine, name=text, revision=text)
people = st.builds(
    PersonKeypoints,
    keypoints=st.lists(numbers, min_size=51, max_size=51).map(tuple),
    box=st.lists(numbers, min_size=4, max_size=4).map(tuple),
    score=st.floats(0, 1),
)
real_records = st.one_of(
    st.lists(
        st.builds(SourceCaption, id=text, caption=text, worker=st.integers(0, 9), subject_reader=engines), max_size=3
    ),
    st.lists(
        st.builds(PoseRecord, persons=st.lists(people, max_size=2).map(tuple), pose_estimator=engines), max_size=3
    ),
    st.lists(st.builds(Recaption, id=text, caption=text), max_size=3),
    st.lists(st.builds(Publication, id=text, hard_image_id=st.none() | text), max_size=3),
    st.lists(st.builds(Rejection, id=text, reason=text, detail=text), max_size=3),
)


@settings(max_examples=40, deadline=None)
@given(real_records)
def test_the_stages_records_come_back_from_parquet_as_they_went_in(records):
    model = type(records[0]) if records else Rejection
    table = pa.parquet.read_table(pa.BufferReader(parquet_bytes(records_table(model, records))))
    assert [model.model_validate(row) for row in table.to_pylist()] == records


@settings(max_examples=20, deadline=None)
@given(st.lists(everythings, max_size=4))
def test_the_same_records_give_the_same_bytes(records):
    assert parquet_bytes(records_table(Everything, records)) == parquet_bytes(records_table(Everything, list(records)))
