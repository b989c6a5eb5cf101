"""What a cluster accepts as a JobSet (jobset.x-k8s.io/v1alpha2): the fields of its schema, and the rules of its controller.

The fields were compared with the custom resource definition of kubernetes-sigs/jobset at commit 01078527 (controller-gen 0.16.2),
and with the types of the API at commit 0336a8fd, which only add fields and values. Of the jobs' template the JobSet's schema says
what Kubernetes' own does, by which it is checked apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml  # type: ignore[import-untyped]

from glt_lightning.launch import LaunchConfig
from glt_lightning.launch.kubernetes import job_text

_MOST = (1 << 31) - 1
_LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")  # a name of a service: RFC 1035
_LABEL_LENGTH = 63
_RANDOM = "-abcde"  # like what is added to the name of each pod


def _fields(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


_TEXT, _FLAG, _OBJECT = {"type": "string"}, {"type": "boolean"}, {"type": "object"}
_NUMBER = {"type": "integer", "minimum": -_MOST - 1, "maximum": _MOST}
_NAMES = {"type": "array", "items": _TEXT}
_TEXTS = {"type": "object", "additionalProperties": _TEXT}
_METADATA = _fields([], annotations=_TEXTS, finalizers=_NAMES, labels=_TEXTS, name=_TEXT, namespace=_TEXT)
_REPLICATED = _fields(
    ["name", "template"],
    name=_TEXT,
    groupName=_TEXT,
    replicas=_NUMBER,
    template=_fields([], metadata=_METADATA, spec={**_OBJECT, "required": ["template"]}),
    dependsOn={
        "type": "array",
        "items": _fields(["name", "status"], name=_TEXT, status={"enum": ["Ready", "Complete"]}),
        "maxItems": 1,
    },
)
_RULE = _fields(
    ["action", "name"],
    name=_TEXT,
    action={"enum": ["FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"]},
    onJobFailureReasons=_NAMES,
    targetReplicatedJobs=_NAMES,
)
_SPEC = _fields(
    [],
    coordinator=_fields(["replicatedJob"], replicatedJob=_TEXT, jobIndex=_NUMBER, podIndex=_NUMBER),
    failurePolicy=_fields(
        [],
        maxRestarts=_NUMBER,
        restartStrategy={"enum": ["Recreate", "BlockingRecreate"]},
        rules={"type": "array", "items": _RULE},
    ),
    managedBy=_TEXT,
    network=_fields([], enableDNSHostnames=_FLAG, publishNotReadyAddresses=_FLAG, subdomain=_TEXT),
    replicatedJobs={"type": "array", "items": _REPLICATED},
    startupPolicy=_fields(["startupPolicyOrder"], startupPolicyOrder={"enum": ["AnyOrder", "InOrder"]}),
    successPolicy=_fields(["operator"], operator={"enum": ["All", "Any"]}, targetReplicatedJobs=_NAMES),
    suspend=_FLAG,
    ttlSecondsAfterFinished={**_NUMBER, "minimum": 0},
)
JOB_SET = _fields(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "jobset.x-k8s.io/v1alpha2"},
    kind={"const": "JobSet"},
    metadata={**_OBJECT, "required": ["name"]},
    spec=_SPEC,
)


def job_objects(config: LaunchConfig) -> list[dict[str, Any]]:
    """The ConfigMap and the JobSet of a job."""
    return list(yaml.safe_load_all(job_text(config)))


def why_refused(job_set: dict[str, Any]) -> list[str]:
    """What the controller's admission finds wrong with a JobSet that fits the schema, beside `managedBy` and failure rules."""
    return list(_refusals(job_set["metadata"]["name"], job_set["spec"]))


def _refusals(name: str, spec: dict[str, Any]) -> Iterator[str]:
    jobs = [each["name"] for each in spec["replicatedJobs"]]
    if len(jobs) > len(set(jobs)):
        yield "a name of replicatedJobs occurs twice"
    given = [spec.get("network", {}).get("subdomain"), *(each.get("groupName") for each in spec["replicatedJobs"])]
    for label in filter(None, given):
        yield from _of_label(label)
    for number, each in enumerate(spec["replicatedJobs"]):
        job, first = each["template"]["spec"], f"{name}-{each['name']}-{each.get('replicas', 1) - 1}"
        yield from _of_label(first)
        if job.get("completionMode", "Indexed") == "Indexed" and "completions" in job:
            yield from _of_label(f"{first}-{job['completions'] - 1}{_RANDOM}")
        if each.get("replicas", 1) * job.get("parallelism", 1) > _MOST:
            yield f"{each['name']}: too many pods"
        for other in each.get("dependsOn", ()):
            if other["name"] not in jobs[:number]:
                yield f"{each['name']} depends on {other['name']}, which does not come before it"
            if spec.get("startupPolicy", {}).get("startupPolicyOrder") == "InOrder":
                yield "startupPolicy and dependsOn exclude each other"
    targets = spec.get("successPolicy", {}).get("targetReplicatedJobs", ())
    yield from (f"successPolicy: there is no {target}" for target in targets if target not in jobs)


def _of_label(name: str) -> Iterator[str]:
    if len(name) > _LABEL_LENGTH or not _LABEL.fullmatch(name):
        yield f"{name}: no label of DNS"
