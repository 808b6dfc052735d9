"""The first inventory and the published schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inventory.init import write_first_inventory
from inventory.loader import load
from inventory.model import Api
from inventory.proxmox import Guest
from inventory.schema import json_schema

API = Api(url="https://pve1.lan:8006", user="root@pam", password="env:PW", fingerprint=":".join(["AB"] * 32))


def reload(tmp_path: Path, text: str) -> Any:
    file = tmp_path / "gpuctl.yaml"
    file.write_text(text)
    return load((file,)).inventory


class TestInit:
    def test_what_the_api_knows_becomes_a_valid_inventory(self, tmp_path: Path) -> None:
        guests = (Guest(201, "web", "pve", "lxc", "stopped"), Guest(200, "llm", "pve", "lxc", "running"))
        made = reload(tmp_path, write_first_inventory(API, guests))
        assert list(made.containers) == ["ct200", "ct201"]
        assert made.containers["ct200"].host == "pve"
        host = made.hosts["pve"]
        assert (host.api, host.node, host.ssh.address) == (API, "pve", "pve1.lan")

    def test_every_node_becomes_a_host(self, tmp_path: Path) -> None:
        guests = (Guest(100, "a", "n1", "lxc", "running"), Guest(101, "b", "n2", "lxc", "running"))
        made = reload(tmp_path, write_first_inventory(API, guests))
        assert {name: host.ssh.address for name, host in made.hosts.items()} == {"n1": "n1", "n2": "n2"}
        assert made.containers["ct101"].host == "n2"

    def test_no_containers_is_still_an_inventory(self, tmp_path: Path) -> None:
        made = reload(tmp_path, write_first_inventory(API, ()))
        assert (list(made.hosts), made.containers) == (["pve1.lan"], {})

    def test_a_token_is_written_by_reference(self, tmp_path: Path) -> None:
        api = Api(
            url="https://[::1]:8006", user="a@pve", token_name="t", token_value="file:t", ca_file="my ca.pem"
        )
        made = reload(tmp_path, write_first_inventory(api, (Guest(100, "", "ct100", "lxc", "unknown"),)))
        assert next(iter(made.hosts.values())).api == api

    @pytest.mark.slow
    @settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        st.lists(
            st.builds(
                Guest,
                vmid=st.integers(100, 999_999_999),
                name=st.text(max_size=12),
                node=st.from_regex(r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,8}[a-zA-Z0-9])?", fullmatch=True),
                kind=st.just("lxc"),
                status=st.text(max_size=6),
            ),
            max_size=4,
            unique_by=lambda guest: guest.vmid,
        ),
        st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), min_size=1, max_size=20),
    )
    def test_whatever_the_names_the_result_is_valid(self, tmp_path: Path, guests: list[Guest], ca: str) -> None:
        api = Api(url="https://a:8006", user="root@pam", password="env:PW", ca_file=ca)
        made = reload(tmp_path, write_first_inventory(api, tuple(guests)))
        assert {container.vmid for container in made.containers.values()} == {guest.vmid for guest in guests}
        assert all(host.api.ca_file == ca for host in made.hosts.values())


class TestSchema:
    @pytest.fixture
    def schema(self) -> dict[str, Any]:
        return json_schema()

    def test_it_says_what_it_is(self, schema: dict[str, Any]) -> None:
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        assert schema["title"] == "gpuctl inventory"

    def test_every_key_is_described(self, schema: dict[str, Any]) -> None:
        for name, definition in {**schema["$defs"], "Inventory": schema}.items():
            for key, value in definition.get("properties", {}).items():
                assert value.get("description"), f"{name}.{key}"

    def test_unknown_keys_are_errors_everywhere(self, schema: dict[str, Any]) -> None:
        for name, definition in {**schema["$defs"], "Inventory": schema}.items():
            if definition["type"] == "object":
                assert definition["additionalProperties"] is False, name

    def test_words_and_limits_are_in_it(self, schema: dict[str, Any]) -> None:
        assert "dflash" in schema["$defs"]["Method"]["enum"]
        assert schema["$defs"]["Container"]["properties"]["vmid"]["minimum"] == 100
        assert set(schema["$defs"]["Container"]["required"]) == {"host", "vmid"}

    def test_a_secret_in_clear_does_not_match(self, schema: dict[str, Any]) -> None:
        assert schema["$defs"]["Api"]["properties"]["password"]["pattern"] == "^(env|file|command):.+"
