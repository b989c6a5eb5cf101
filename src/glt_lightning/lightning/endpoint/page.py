"""The description of an endpoint: OpenAPI, and a page of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jinja2

from glt_lightning.base import __version__
from glt_lightning.lightning.endpoint.question import ARROW, JSON

if TYPE_CHECKING:
    from glt_lightning.lightning.endpoint.deploy import Endpoint

_ID = {"oneOf": [{"type": "string"}, {"type": "integer"}]}
_ROWS = {"type": "array", "items": {"type": "object"}}
_STATUS = {
    "400": "The body is damaged.",
    "401": "The key is missing or wrong.",
    "413": "The request is beyond a limit.",
    "415": "The content type is neither JSON nor Arrow.",
    "422": "No row can be answered; the error names the field and the row.",
    "500": "The model failed.",
    "503": "Too many requests are in work, or the endpoint stops. Ask again later.",
}
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{{ api.info.title }}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body{font:15px/1.5 system-ui,sans-serif;max-width:52em;margin:2em auto;padding:0 1em}
code,pre{background:#8881;padding:.1em .3em}pre{padding:1em;overflow:auto}td,th{padding:.3em .8em .3em 0;text-align:left;
vertical-align:top;overflow-wrap:anywhere}</style></head><body><main>
<h1>{{ api.info.title }}</h1><p>{{ api.info.description }} <a href="openapi.json">openapi.json</a></p>
{% for path, methods in api.paths.items() %}{% for method, each in methods.items() %}
<h2><code>{{ method.upper() }} {{ path }}</code></h2><p>{{ each.summary }}</p>
{% if each.requestBody %}<table><tr><th>field</th><th>meaning</th></tr>
{% for name, field in api.components.schemas.Question.properties.items() %}
<tr><td><code>{{ name }}</code></td><td>{{ field.description }}</td></tr>{% endfor %}</table>
<pre tabindex="0">curl -H 'content-type: application/json' -d '{{ example }}' http://HOST:PORT/predict</pre>{% endif %}
<table>{% for status, answer in each.responses.items() %}
<tr><td>{{ status }}</td><td>{{ answer.description }}</td></tr>{% endfor %}
</table>{% endfor %}{% endfor %}</main></body></html>
"""


def openapi(endpoint: Endpoint) -> dict[str, Any]:
    """Returns the description of an endpoint as OpenAPI 3.1."""
    question = {"type": "object", "additionalProperties": False, "properties": _fields(endpoint)}
    body = {
        JSON: {"schema": {"$ref": "#/components/schemas/Question"}, "example": _example(endpoint)},
        ARROW: {"schema": {"type": "string", "format": "binary"}},
    }
    answers: dict[str, Any] = {status: {"description": text} for status, text in _STATUS.items()}
    answers["200"] = {
        "description": "A row for each id, pair or new node, with a prediction or an error; hashes of the model and the graph, "
        "the version of this, the key and a hash of the sample.",
        "content": {JSON: {"schema": {"$ref": "#/components/schemas/Answer"}}, ARROW: {"schema": {"type": "string"}}},
    }
    keyed = endpoint.options.api_key_file is not None
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"Predictions of {type(endpoint.model.module).__name__}",
            "version": __version__,
            "description": "Answers by a graph neural network.",
        },
        "paths": {
            "/predict": {
                "post": {
                    "summary": "Predicts nodes, or scores pairs of nodes.",
                    "requestBody": {"required": True, "content": body},
                    "responses": dict(sorted(answers.items())),
                }
            },
            "/health": {"get": _plain("Tells whether requests are answered; needs no key.", "200", "503")},
            "/metrics": {"get": _plain("Counts and durations, for Prometheus.", "200", "401")},
        },
        "components": {
            "schemas": {"Question": question, "Answer": _answer(endpoint)},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}} if keyed else {},
        },
        "security": [{"key": []}] if keyed else [],
    }


def page(api: dict[str, Any]) -> str:
    """Renders the description as a page that loads nothing from elsewhere."""
    template = jinja2.Environment(autoescape=True).from_string(_PAGE)
    example = api["paths"]["/predict"]["post"]["requestBody"]["content"][JSON]["example"]
    return template.render(api=api, example=json.dumps(example))


def _plain(summary: str, *statuses: str) -> dict[str, Any]:
    return {
        "summary": summary,
        "responses": {each: {"description": _STATUS.get(each, "As asked for.")} for each in statuses},
    }


def _fields(endpoint: Endpoint) -> dict[str, Any]:
    graph, options = endpoint.graph.current, endpoint.options
    nodes, edges = graph.node_types, graph.edge_types
    found: dict[str, Any] = {
        "ids": {"type": "array", "items": _ID, "maxItems": options.max_rows, "description": "Nodes, by your ids."},
        "node_type": {"enum": nodes, "description": f"Their type: {', '.join(nodes)}."},
    }
    if edges:
        pair = {"type": "array", "items": _ID, "minItems": 2, "maxItems": 2}
        found["pairs"] = {
            "type": "array",
            "items": pair,
            "maxItems": options.max_rows,
            "description": "Pairs [source, destination] to score.",
        }
        found["edge_type"] = {"enum": edges, "description": f"Their type: {', '.join(edges)}."}
    for kind in ("nodes", "edges"):
        found[kind] = {
            "type": "object",
            "additionalProperties": _ROWS,
            "description": f"New {kind}: rows with the columns of your tables, by type. Other requests know nothing of them.",
        }
    times = {
        "type": "array",
        "items": {"type": "integer"},
        "description": "A time for each id or pair, as in the graph: of dates in tables microseconds since 1970.",
    }
    fanouts = {
        "type": "array",
        "items": {"type": "integer", "minimum": 1, "maximum": options.max_fanout},
        "maxItems": options.max_hops,
        "description": f"Neighbours per hop, in place of the usual ones: at most {options.max_hops} of {options.max_fanout}.",
    }
    key = {
        "type": "string",
        "description": "Key of the random draws, 64 bits. The same request with the same key has the same sample.",
    }
    embedding = {"type": "boolean", "description": "Whether the answer has the embedding of each node, too."}
    return found | {"embedding": embedding, "times": times, "num_neighbors": fanouts, "key": key}


def _example(endpoint: Endpoint) -> dict[str, Any]:
    return {"pairs": [["A", "B"]]} if endpoint.graph.current.edge_types else {"ids": ["A"]}


def _answer(endpoint: Endpoint) -> dict[str, Any]:
    error = {
        "type": "object",
        "properties": {
            "field": {"type": "string"},
            "row": {"type": ["integer", "null"]},
            "message": {"type": "string"},
        },
    }
    facts = {name: {"type": "string"} for name in ("model", "graph", "key", "sample")}
    return {
        "type": "object",
        "properties": {
            "predictions": _ROWS,
            "errors": {"type": "array", "items": error},
            **facts,
            "version": {"type": "integer"},
        },
    }
