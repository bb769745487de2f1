"""Uses clients that openapi-python-client made from the documents of the base and flows hosts.

Arguments: the URL of the base host, the URL of the flows host, an API key.
"""

import sys

import base
import flows
from base.api.decisions import decide
from base.api.files import create_file, get_file, get_file_content
from base.api.models import get_model, list_models
from base.api.predictions import cancel_prediction, create_prediction, get_prediction
from base.api.workflows import create_workflow, get_workflow
from base.models import (
    DecisionsQuestionChoice,
    DecisionsQuestionOul,
    DecisionsQuestionScore,
    DecisionsRequest,
    Error,
    FileForm,
    NewPrediction,
    NewWorkflow,
    OpenAiError,
)
from base.types import File
from flows.api.workflows import create_workflow as create_legacy_workflow
from flows.api.executions import get_execution, trigger_workflow
from flows.models import LegacyNewWorkflow, LegacyTrigger


def main(base_url, flows_url, key):
    client = base.AuthenticatedClient(
        base_url=base_url, token=key, prefix="", auth_header_name="X-API-Key"
    )
    models = list_models.sync(client=client, limit=500)
    assert "text-template" in [model.slug for model in models], models

    missing = get_model.sync(client=client, slug="of-nobody")
    assert isinstance(missing, Error) and "not found" in missing.error, missing

    new = NewPrediction.from_dict(
        {
            "model": "text-template",
            "version": "0.0.1",
            "input": {"template": "Hello {{ name }}!", "values": {"name": "Ada"}},
        }
    )
    accepted = create_prediction.sync(client=client, body=new, idempotency_key="a-key")
    again = create_prediction.sync(client=client, body=new, idempotency_key="a-key")
    assert accepted.prediction_id == again.prediction_id
    prediction = get_prediction.sync(client=client, id=accepted.prediction_id, wait=20)
    assert prediction.status == "success", prediction
    assert prediction.output == "Hello Ada!", prediction
    assert prediction.attempts[0].completed_at >= prediction.created_at, prediction

    cancelled = cancel_prediction.sync(client=client, id=accepted.prediction_id)
    assert isinstance(cancelled, Error), cancelled

    form = FileForm(file=File(payload=b"bytes", file_name="a.txt", mime_type="text/plain"))
    file = create_file.sync(client=client, body=form)
    assert (file.size, file.filename, file.content_type) == (5, "a.txt", "text/plain"), file
    assert get_file.sync(client=client, id=file.id).sha256 == file.sha256
    content = get_file_content.sync(client=client, id=file.id)
    assert content.payload.read() == b"bytes", content

    questions = {
        "is_late": {"type": "oul", "instructions": "Is it late?"},
        "team": {"type": "choice", "instructions": "Whose is it?", "criteria": {"a": "x", "b": None}},
        "mood": {"type": "score", "instructions": "How calm?", "criteria": ["not", "very"]},
    }
    asked = DecisionsRequest.from_dict({"model": "nobody", "state": "a", "questions": questions})
    kinds = {name: type(question) for name, question in asked.questions.additional_properties.items()}
    expected = [DecisionsQuestionOul, DecisionsQuestionChoice, DecisionsQuestionScore]
    assert list(kinds.values()) == expected, kinds
    assert asked.to_dict()["questions"] == questions
    refused = decide.sync(client=client, body=asked)
    assert isinstance(refused, OpenAiError) and "nobody" in refused.error.message, refused

    inputs = {"type": "object", "properties": {"name": {"type": "string"}}}
    step = {
        "step_id": "greet",
        "type": "model",
        "model": "text-template",
        "params": {"template": "Hello {{inputs.name}}!"},
    }
    workflow = NewWorkflow.from_dict(
        {"name": "Greeting", "description": "d", "definition": {"steps": [step], "input_schema": inputs}}
    )
    made = create_workflow.sync(client=client, body=workflow)
    found = get_workflow.sync(client=client, workflow=made.slug)
    assert found.workflow_id == made.workflow_id and len(found.versions) == 1, found

    legacy = flows.AuthenticatedClient(base_url=flows_url, token=key)
    body = {
        "name": "Legacy greeting",
        "steps": [
            {
                "id": "greet",
                "type": "1019Model",
                "model_slug": "text-template",
                "params": {"template": "Hello!"},
            }
        ],
    }
    made = create_legacy_workflow.sync(client=legacy, body=LegacyNewWorkflow.from_dict(body))
    triggered = trigger_workflow.sync(
        workflow=made.workflow_id, client=legacy, body=LegacyTrigger.from_dict({"parameters": {}})
    )
    record = get_execution.sync(
        workflow=made.workflow_id, execution=triggered.trigger_id, client=legacy
    )
    assert str(record.flow_id) == made.workflow_id, record


main(*sys.argv[1:])
