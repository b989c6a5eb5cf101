"""The fields of a JobSet (jobset.x-k8s.io/v1alpha2) that belong to it alone; the template of its jobs is Kubernetes' own."""

from __future__ import annotations

from typing import Any


def _fields(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


_TEXT, _NUMBER, _FLAG = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
_NAMES = {"type": "array", "items": _TEXT}
_DEPENDS = _fields(["name", "status"], name=_TEXT, status={"enum": ["Ready", "Complete"]})
_REPLICATED = _fields(
    ["name", "template"],
    name=_TEXT,
    groupName=_TEXT,
    replicas=_NUMBER,
    template={"type": "object"},
    dependsOn={"type": "array", "items": _DEPENDS, "maxItems": 1},
)
_SPEC = _fields(
    [],
    coordinator={"type": "object"},
    failurePolicy=_fields(
        [],
        maxRestarts=_NUMBER,
        restartStrategy={"enum": ["Recreate", "BlockingRecreate"]},
        rules={"type": "array"},
    ),
    managedBy=_TEXT,
    network=_fields([], enableDNSHostnames=_FLAG, publishNotReadyAddresses=_FLAG, subdomain=_TEXT),
    replicatedJobs={"type": "array", "items": _REPLICATED, "minItems": 1},
    startupPolicy={"type": "object"},
    successPolicy=_fields(["operator"], operator={"enum": ["All", "Any"]}, targetReplicatedJobs=_NAMES),
    suspend=_FLAG,
    ttlSecondsAfterFinished=_NUMBER,
)
JOB_SET = _fields(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "jobset.x-k8s.io/v1alpha2"},
    kind={"const": "JobSet"},
    metadata=_fields(["name"], name=_TEXT, namespace=_TEXT),
    spec=_SPEC,
)
