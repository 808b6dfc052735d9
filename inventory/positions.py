"""Read one YAML text into plain JSON-like values and remember the line of every key and item.

Scalars follow the core schema of YAML 1.2 (only `true` and `false` are booleans, no dates, no octal),
because the old rules turn `no` into false and `12:30` into 750.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import yaml

Path = tuple[str | int, ...]
"""Where a value sits: keys and list indexes from the top."""

MAX_NODES = 50_000
"""More values than any inventory has; stops texts that grow by aliases of aliases."""

_INT = re.compile(r"[-+]?[0-9]{1,18}\Z")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][-+]?[0-9]+)?\Z")
_PREFIX = "tag:yaml.org,2002:"
# Looks like control characters to YAML: it refuses them anyway, but without naming the line.
_ESCAPE_FAULTS = (ValueError, OverflowError, IndexError)


class _Loader(yaml.SafeLoader):
    """The safe loader with its own idea of plain scalars."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's own type)


_Loader.add_implicit_resolver(
    _PREFIX + "bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), list("tTfF")
)
_Loader.add_implicit_resolver(_PREFIX + "null", re.compile(r"(?:~|null|Null|NULL|)\Z"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(_PREFIX + "int", _INT, list("-+0123456789"))
_Loader.add_implicit_resolver(_PREFIX + "float", _FLOAT, list("-+.0123456789"))
_Loader.add_implicit_resolver(_PREFIX + "merge", re.compile(r"<<\Z"), ["<"])


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake in one file; `line` counts from 1, 0 when the whole file is meant."""

    line: int
    path: Path
    message: str


@dataclass(slots=True)
class Document:
    """The values of one file; `data` is None when the file is empty or not YAML."""

    data: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)


def parse(text: str) -> Document:
    """Never raises: whatever is wrong with the text is in `mistakes`."""
    document = Document()
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is not None:
                document.lines[()] = node.start_mark.line + 1
                document.data = _Walk(loader, document).value(node, ())
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        document.mistakes.append(_syntax(error, text))
    except RecursionError:
        document.mistakes.append(Mistake(1, (), "is nested too deeply to be an inventory"))
    except _ESCAPE_FAULTS as error:
        document.mistakes.append(Mistake(1, (), f"is not YAML: {error}"))
    return document


def _syntax(error: yaml.YAMLError, text: str) -> Mistake:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        said = " ".join(part for part in (error.context, error.problem) if part)
        if "expected a single document" in said:
            said = "a second document starts here ('---'); put it into a file of its own"
        elif "cannot start any token" in said and "\\t" in said:
            said = "a tab is used for indentation; YAML wants spaces"
        return Mistake(mark.line + 1 if mark else 1, (), f"is not YAML: {said}")
    if isinstance(error, yaml.reader.ReaderError):
        before = text[: error.position]
        return Mistake(before.count("\n") + 1, (), "holds a control character, which YAML does not allow")
    return Mistake(1, (), f"is not YAML: {error}")


class _Walk:
    """Turns nodes into values, depth first."""

    def __init__(self, loader: _Loader, document: Document) -> None:
        self._loader = loader
        self._document = document
        self._count = 0
        self._open: set[int] = set()

    def _mistake(self, node: yaml.Node, path: Path, message: str) -> None:
        self._document.mistakes.append(Mistake(node.start_mark.line + 1, path, message))

    def value(self, node: yaml.Node, path: Path) -> Any:
        self._count += 1
        if self._count > MAX_NODES:
            raise yaml.MarkedYAMLError(problem=f"more than {MAX_NODES} values", problem_mark=node.start_mark)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if id(node) in self._open:
            self._mistake(node, path, "refers to itself")
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return self._list(node, path)
            assert isinstance(node, yaml.MappingNode)
            return self._mapping(node, path)
        finally:
            self._open.discard(id(node))

    def _list(self, node: yaml.SequenceNode, path: Path) -> list[Any]:
        self._plain_tag(node, path, "seq")
        values = []
        for index, item in enumerate(node.value):
            at = (*path, index)
            self._document.lines[at] = item.start_mark.line + 1
            values.append(self.value(item, at))
        return values

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        self._plain_tag(node, path, "map")
        node.value = self._once(node, path)
        self._loader.flatten_mapping(node)
        values: dict[str, Any] = {}
        for key, item in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._mistake(key, path, "a key must be a word, not a list or a mapping")
                continue
            name = self._text(key, path)
            at = (*path, name)
            self._document.lines[at] = key.start_mark.line + 1
            values[name] = self.value(item, at)
        return values

    def _once(self, node: yaml.MappingNode, path: Path) -> list[tuple[yaml.Node, yaml.Node]]:
        """The pairs without repeated keys: the first counts, each later one is a mistake."""
        first: dict[str, int] = {}
        pairs = []
        for key, item in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _PREFIX + "merge":
                if key.value in first:
                    said = f"is given twice; the first is in line {first[key.value]}"
                    self._mistake(key, (*path, key.value), said)
                    continue
                first[key.value] = key.start_mark.line + 1
            pairs.append((key, item))
        return pairs

    def _plain_tag(self, node: yaml.Node, path: Path, kind: str) -> None:
        if node.tag != _PREFIX + kind:
            self._mistake(node, path, f"has the tag {node.tag!r}; tags are not used in an inventory")

    def _text(self, node: yaml.ScalarNode, path: Path) -> str:
        text: str = node.value
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            self._mistake(node, path, "holds half of a character pair (\\ud800 ... \\udfff), which is no text")
            return text.encode("utf-8", "replace").decode("utf-8")
        return text

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        text, tag = node.value, node.tag.removeprefix(_PREFIX)
        match tag:
            case "bool" if text.lower() in ("true", "false"):
                return text.lower() == "true"
            case "null":
                return None
            case "int" if _INT.match(text):
                return int(text)
            case "float" if _FLOAT.match(text) and math.isfinite(float(text)):
                return float(text)
            case "str" | "bool" | "int" | "float" | "merge":
                return self._text(node, path)
        self._mistake(node, path, f"has the tag {node.tag!r}; tags are not used in an inventory")
        return self._text(node, path)
