import inspect
from pathlib import Path
from typing import Literal, get_args, get_origin

import pytest
from pydantic import BaseModel, ValidationError

from pipeline import stages
from pipeline.core.prompts import load_prompt
from schemas import records
from schemas.arrow import arrow_schema
from schemas.records import KINDS, Engine, Factors, Review, behavior_of

GOLDEN = Path(__file__).parents[1] / "golden" / "record_schemas.txt"
MODELS = [
    model
    for _, model in inspect.getmembers(records, inspect.isclass)
    if issubclass(model, BaseModel) and model.__module__ == records.__name__ and model is not records.Model
]


def schemas_as_text() -> str:
    lines = []
    for model in sorted(MODELS, key=lambda model: model.__name__):
        lines.append(f"\n{model.__name__}")
        for field in arrow_schema(model):
            annotation = model.model_fields[field.name].annotation
            choices = f" of {', '.join(get_args(annotation))}" if get_origin(annotation) is Literal else ""
            lines.append(f"    {field.name}: {field.type}{'' if field.nullable else ' not null'}{choices}")
    return "\n".join(lines).lstrip() + "\n"


def test_the_records_are_those_of_the_golden_file():
    # A changed field changes the data on people's disks. Where it is meant: write the text below to the golden file.
    assert schemas_as_text() == GOLDEN.read_text("utf-8"), schemas_as_text()


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_record_is_frozen_and_knows_no_other_fields(model):
    assert model.model_config["frozen"] is True
    assert model.model_config["extra"] == "forbid"


def test_every_stage_writes_a_record_of_the_schemas():
    for stage in stages.all_stages():
        assert stage.writes in MODELS, stage.name
        assert issubclass(stage.writes, records.Record)


def test_a_record_refuses_an_unknown_field_a_missing_one_and_a_change():
    review = Review(id="a", caption="c", reviewed=False, corrected=False, votes=0)
    with pytest.raises(ValidationError):
        Review.model_validate({**review.model_dump(), "note": "x"})
    with pytest.raises(ValidationError):
        Review.model_validate({"id": "a", "caption": "c", "reviewed": False, "corrected": False})
    with pytest.raises(ValidationError):
        review.caption = "d"
    with pytest.raises(ValidationError):
        Engine.model_validate({"name": "x", "revision": 3})


def test_text_that_no_file_can_hold_is_refused():
    with pytest.raises(ValidationError, match="caption is not valid text"):
        Review(id="a", caption="a man \ud800 runs", reviewed=False, corrected=False, votes=0)
    with pytest.raises(ValidationError, match="action is not valid text"):
        Factors(appearance=None, action="\udc80", background=None)
    assert Factors(appearance="ünïcödé 🙂", action=None, background=None).appearance


def test_goal_is_normal_and_the_failures_are_anomalies():
    assert {kind: behavior_of(kind) for kind in KINDS} == {"goal": "normal", "wentrong": "anomaly", "full": "anomaly"}


def test_the_factors_are_also_what_a_language_model_is_asked_for_three_strings_or_nulls():
    schema = Factors.model_json_schema()
    assert schema["required"] == ["appearance", "action", "background"] == list(schema["properties"])
    assert schema["additionalProperties"] is False
    for each in schema["properties"].values():
        assert [choice["type"] for choice in each["anyOf"]] == ["string", "null"]
    prompt = load_prompt("decompose")
    assert prompt.reply == "json"
    assert all(f'"{name}": ...' in prompt.text for name in schema["required"])
    with pytest.raises(ValidationError):
        Factors.model_validate_json('{"appearance": "red", "action": null}')
