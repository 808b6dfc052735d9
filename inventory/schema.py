"""The JSON Schema of an inventory, so that editors complete and check the YAML while it is written."""

from __future__ import annotations

from typing import Any

from inventory.names import SECRET_FIELDS

SCHEMA = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """Schema of one whole file, draft 2020-12. What refers to what is checked on loading only."""
    from pydantic import TypeAdapter

    from inventory.model import Inventory

    schema = TypeAdapter(Inventory).json_schema(mode="validation")
    for definition in schema.get("$defs", {}).values():
        for name, field in definition.get("properties", {}).items():
            if name in SECRET_FIELDS:
                field["pattern"] = "^(env|file|command):.+"
                # The default "" means "not given"; as a value it would contradict the pattern.
                field.pop("default", None)
    return {"$schema": SCHEMA, **schema, "title": "gpuctl inventory"}
