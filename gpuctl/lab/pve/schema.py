"""Parameters against the recorded schema, with the texts Proxmox gives for each mistake."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from gpuctl.lab.pve.formats import FormatError, check_format

Properties = Mapping[str, Mapping[str, Any]]

UNKNOWN: Final = "property is not defined in schema and the schema does not allow additional properties"
_TYPES: Final = {
    "integer": re.compile(r"[+-]?\d+", re.ASCII),
    "number": re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII),
    "boolean": re.compile(r"[01]"),
}
_TRUE: Final = re.compile(r"1|on|yes|true", re.IGNORECASE)
_FALSE: Final = re.compile(r"0|off|no|false", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of the API: its path with {names}, its parameters and who may call it."""

    method: str
    path: str
    properties: Properties
    permissions: Mapping[str, Any]
    protected: bool
    on_node: bool


@cache
def endpoints() -> Mapping[str, Endpoint]:
    """The recorded endpoints, keyed `METHOD /path/{name}` (api.json beside this module)."""
    data = json.loads(Path(__file__).with_name("api.json").read_text(encoding="utf-8"))
    return {
        key: Endpoint(
            method=key.split(" ", 1)[0],
            path=key.split(" ", 1)[1],
            properties=_expand(entry["parameters"].get("properties", {})),
            permissions=entry["permissions"],
            protected=entry["protected"],
            on_node=entry["proxyto"] == "node",
        )
        for key, entry in data["endpoints"].items()
    }


def _expand(properties: Properties) -> Properties:
    """`dev[n]` with its index range becomes dev0, dev1, ..."""
    flat: dict[str, Mapping[str, Any]] = {}
    for name, schema in properties.items():
        if name.endswith("[n]"):
            for index in range(schema["x-index-min"], schema["x-index-max"] + 1):
                flat[f"{name[:-3]}{index}"] = schema
        else:
            flat[name] = schema
    return flat


@cache
def options() -> Properties:
    """The options a container configuration knows: those of PUT config, and what only snapshots write."""
    put = endpoints()["PUT /nodes/{node}/lxc/{vmid}/config"].properties
    known = {key: value for key, value in put.items() if key not in ("delete", "digest", "revert", "node", "vmid")}
    known["parent"] = {"type": "string", "format": "pve-configid", "optional": 1}
    known["snaptime"] = {"type": "integer", "minimum": 0, "optional": 1}
    return known


def parse_boolean(text: str) -> int | None:
    """1 or 0 for the spellings allowed in files and property strings, None for anything else."""
    if _TRUE.fullmatch(text):
        return 1
    return 0 if _FALSE.fullmatch(text) else None


def parse_property_string(parts: Properties, text: str, *, prefix: str = "") -> dict[str, Any]:
    """`[path=]/dev/x,mode=0666` as a dict; booleans become 1/0, everything else stays text.

    Raises `FormatError`; `prefix` (such as `dev0.`) stands before the names of parts in its errors.
    """
    default = next((name for name, part in parts.items() if part.get("default_key")), None)
    found: dict[str, Any] = {}
    for piece in text.split(","):
        if not piece.strip(" \t\r\n\f\v"):
            continue
        key, equals, value = piece.partition("=")
        if not equals:
            if default is None:
                raise FormatError("value without key, but schema does not define a default key\n")
            key, value = default, piece
        elif not key or not re.match(r"[^\n]+", value):
            raise FormatError("missing key in comma-separated list property\n")
        if key in found:
            raise FormatError(f"duplicate key in comma-separated list property: {key}\n")
        found[key] = value
        if parts.get(key, {}).get("type") == "boolean":
            flag = parse_boolean(value)
            found[key] = value if flag is None else flag
    errors = check_properties(parts, found, prefix=prefix)
    if errors:
        raise FormatError("format error\n", errors)
    return found


def check_properties(schema: Properties, values: Mapping[str, Any], *, prefix: str = "") -> dict[str, str]:
    """Every bad or missing parameter with its text; empty when all is well."""
    errors: dict[str, str] = {}
    for name, value in values.items():
        if name not in schema:
            errors[prefix + name] = UNKNOWN
            continue
        text = _check_value(schema[name], value, prefix + name)
        if text:
            errors[prefix + name] = text
        elif (needs := schema[name].get("requires")) and needs not in values:
            errors[prefix + needs] = f"missing property - '{name}' requires this property"
    for name, part in schema.items():
        if name not in values and not part.get("optional"):
            errors[prefix + name] = "property is missing and it is not optional"
    return errors


def _check_value(schema: Mapping[str, Any], value: Any, path: str) -> str:
    kind = schema["type"]
    if isinstance(value, (list, dict)):
        return f"type check ('{kind}') failed - got {'ARRAY' if isinstance(value, list) else 'HASH'}"
    text = str(int(value)) if isinstance(value, bool) else str(value)
    pattern = _TYPES.get(kind)
    if pattern is not None and not pattern.fullmatch(text):
        return f"type check ('{kind}') failed - got '{text}'"
    shape = schema.get("format")
    if shape:
        try:
            if isinstance(shape, str):
                check_format(shape, text)
            else:
                parse_property_string(shape, text, prefix=f"{path}.")
        except FormatError as error:
            return f"invalid format - {error.text}"
    return _check_limits(schema, text)


def _check_limits(schema: Mapping[str, Any], text: str) -> str:
    if "enum" in schema and text not in schema["enum"]:
        return f"value '{text}' does not have a value in the enumeration '{', '.join(schema['enum'])}'"
    if schema["type"] in ("integer", "number"):
        if "minimum" in schema and float(text) < schema["minimum"]:
            return f"value must have a minimum value of {schema['minimum']}"
        if "maximum" in schema and float(text) > schema["maximum"]:
            return f"value must have a maximum value of {schema['maximum']}"
    if schema["type"] == "string":
        if len(text) > schema.get("maxLength", len(text)):
            return f"value may only be {schema['maxLength']} characters long"
        pattern = schema.get("pattern")
        if pattern and not re.search(f"^(?:{pattern.replace('(?^:', '(?:')})$", text, re.ASCII):
            return "value does not match the regex pattern"
    return ""


def check_option(key: str, text: str) -> Any:
    """One `key: text` line of a file: the value as Proxmox keeps it (int for integers and booleans).

    Raises `FormatError`. Ranges and enumerations are not looked at: the parser does not look either.
    """
    schema = options().get(key)
    if schema is None:
        raise FormatError(f"unknown setting '{key}'\n")
    if "\n" in text or "\r" in text:
        raise FormatError("property contains a line feed\n")
    kind = schema["type"]
    if kind == "boolean":
        flag = parse_boolean(text)
        if flag is not None:
            return flag
    elif kind == "integer":
        if re.fullmatch(r"\d+", text, re.ASCII):
            return int(text)
    elif kind == "number":
        if re.fullmatch(r"\d+(?:\.\d+)?", text, re.ASCII):
            return text
    else:
        return _checked_string(schema, text)
    raise FormatError(f"type check ('{kind}') failed - got '{text}'\n")


def _checked_string(schema: Mapping[str, Any], text: str) -> str:
    shape = schema.get("format")
    if isinstance(shape, str):
        check_format(shape, text)
    elif shape:
        parse_property_string(shape, text)
    return text
