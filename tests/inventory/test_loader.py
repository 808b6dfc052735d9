"""Inventories: every mistake of every file at once, in words, with its line."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inventory import positions
from inventory.errors import ConfigError, Exit
from inventory.loader import find, load
from inventory.model import Method, Task

CASES = sorted((Path(__file__).parent / "cases").glob("*.yaml"))
FINGERPRINT = ":".join(["AB"] * 32)
HOST = f"""\
  pve:
    api: {{url: "https://a:8006", user: root@pam, password: "env:A", fingerprint: "{FINGERPRINT}"}}
    ssh: {{address: a}}
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def mistakes(*files: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(files)
    assert caught.value.exit_code is Exit.CONFIG
    return list(caught.value.detail)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_a_broken_file_tells_all_its_mistakes_with_their_lines(
    case: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    expected = [line[3:] for line in case.read_bytes().decode().splitlines() if line.startswith("#> ")]
    assert expected, "a case says what it expects"
    found = [line.removeprefix(f"{str(case)[1:]}:") for line in mistakes(case)]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_no_message_speaks_the_library_s_language_or_shows_a_secret(case: Path) -> None:
    text = "\n".join(mistakes(case))
    assert not re.search(r"Input should|valid (string|integer|dictionary)|pydantic|dataclass|\bNone\b", text)
    assert not re.search(r"hunter2|hf_abc|sk-very|12345678", text)


def test_mistakes_of_all_files_come_in_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one = write(tmp_path / "one.yaml", "hosts:\n" + HOST + "foo: 1\n")
    two = write(tmp_path / "two.yaml", "containers:\n  ct200: {host: pve, vmid: 1}\n")
    three = write(tmp_path / "three.yaml", "a: [\n")
    found = mistakes(one, two, three, tmp_path / "gone.yaml")
    assert [line.split(" ")[0] for line in found] == ["one.yaml:5:", "two.yaml:2:", "three.yaml:2:", "gone.yaml:"]
    assert found[3] == "gone.yaml: can't be read: No such file or directory"


def test_the_same_name_in_two_files_names_both_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one = write(tmp_path / "one.yaml", "lab: true\nthresholds: {shm_free_min_mib: 1}\nhosts:\n" + HOST)
    two = write(tmp_path / "two.yaml", "lab: false\nthresholds: {shm_free_min_mib: 2}\nhosts:\n" + HOST)
    assert mistakes(one, two) == [
        "two.yaml:1: [lab] key 'lab' is already in one.yaml, line 1",
        "two.yaml:2: [thresholds.shm_free_min_mib] key 'shm_free_min_mib' is already in one.yaml, line 2",
        "two.yaml:4: [hosts.pve] host 'pve' is already in one.yaml, line 4",
    ]


def test_files_are_joined_and_each_keeps_its_own_folder(tmp_path: Path) -> None:
    one = write(tmp_path / "a" / "one.yaml", "hosts:\n" + HOST + "thresholds: {connect_wait_s: 5}\n")
    two = write(
        tmp_path / "b" / "two.yaml",
        "containers:\n  ct200: {host: pve, vmid: 200}\nthresholds: {start_timeout_s: 7}\n",
    )
    loaded = load((one, two))
    assert loaded.base_of("pve") == tmp_path / "a"
    assert loaded.base_of("ct200") == tmp_path / "b"
    assert loaded.base == tmp_path / "a"
    assert loaded.files == (one, two)
    assert (loaded.inventory.thresholds.connect_wait_s, loaded.inventory.thresholds.start_timeout_s) == (5, 7)


def test_an_empty_file_adds_nothing(tmp_path: Path) -> None:
    loaded = load((write(tmp_path / "a.yaml", "# nothing yet\n"), write(tmp_path / "b.yaml", "hosts:\n" + HOST)))
    assert list(loaded.inventory.hosts) == ["pve"]


def test_no_file_at_all_is_a_configuration_error_with_a_way_on() -> None:
    with pytest.raises(ConfigError) as caught:
        load(())
    assert "gpuctl inventory init" in caught.value.hint


def test_a_folder_a_binary_and_a_huge_file_are_no_inventories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"a: 1\nb: \xff\n")
    huge = tmp_path / "huge.yaml"
    huge.write_bytes(b"#" * (1024 * 1024 + 1))
    assert mistakes(tmp_path / "x", binary, huge, tmp_path) == [
        "x: can't be read: No such file or directory",
        "binary.yaml:2: is not UTF-8 text",
        "huge.yaml: is larger than 1048576 bytes: this is no inventory",
        ".: can't be read: Is a directory",
    ]


def test_aliases_that_multiply_are_stopped(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for level in range(1, 8):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]")
    (found,) = [line for line in mistakes(write(tmp_path / "bomb.yaml", "\n".join(lines))) if "not YAML" in line]
    assert "more than 50000 values" in found


@pytest.mark.slow
def test_deep_nesting_is_a_mistake_and_no_crash(tmp_path: Path) -> None:
    assert "nested too deeply" in mistakes(write(tmp_path / "deep.yaml", "a: " + "[" * 5000))[0]


def test_plain_words_mean_what_they_look_like(tmp_path: Path) -> None:
    text = (
        "hosts:\n"
        + HOST
        + (
            "containers:\n  ct200:\n    host: pve\n    vmid: 0200\n"
            "    weights: [{repo: a/b, to: /b, revision: 2024-01-02}, {repo: a/c, to: /c, revision: 12e}]\n"
            "    engine: {kind: vllm, model: /b, args: [no, on, 12:30], env: {A: off}}\n"
        )
    )
    container = load((write(tmp_path / "a.yaml", text),)).inventory.containers["ct200"]
    assert container.vmid == 200
    assert [weights.revision for weights in container.weights] == ["2024-01-02", "12e"]
    assert container.engine is not None
    assert container.engine.args == ("no", "on", "12:30")
    assert container.engine.env == {"A": "off"}


def test_anchors_and_merge_keys_work(tmp_path: Path) -> None:
    text = (
        "hosts:\n"
        + HOST
        + (
            "containers:\n  ct200: &ct\n    host: pve\n    vmid: 200\n    gpus: {count: 4}\n"
            "  ct201:\n    <<: *ct\n    vmid: 201\n"
        )
    )
    containers = load((write(tmp_path / "a.yaml", text),)).inventory.containers
    assert (containers["ct201"].vmid, containers["ct201"].gpus.count) == (201, 4)


def test_a_number_as_a_name_is_a_name(tmp_path: Path) -> None:
    text = "hosts:\n" + HOST + "containers:\n  200: {host: pve, vmid: 200}\n"
    assert list(load((write(tmp_path / "a.yaml", text),)).inventory.containers) == ["200"]


class TestExamples:
    @pytest.mark.parametrize("name", ["example.yaml", "lab.yaml"])
    def test_a_shipped_example_loads_without_its_secrets(self, name: str, project: Path) -> None:
        load((project / "inventory" / name,))

    def test_the_example_is_the_machine_of_the_story(self, project: Path) -> None:
        container = load((project / "inventory" / "example.yaml",)).inventory.containers["ct200"]
        assert (container.vmid, container.gpus.count) == (200, 8)
        assert [weights.repo for weights in container.weights] == ["Qwen/Qwen3.6-27B", "z-lab/Qwen3.6-27B-DFlash"]
        assert container.bench.methods == (Method.AUTO, Method.MTP, Method.DFLASH, Method.DDTREE)
        assert container.bench.tp == (1, 2, 4, 8)
        assert container.bench.tasks == tuple(Task)
        assert container.bench.max_tokens == (256, 1024)


class TestFind:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for name in (
            "gpuctl.yaml",
            "inventory/b.yaml",
            "inventory/a.yml",
            "inventory/example.yaml",
            "inventory/lab.yaml",
            "inventory/.hidden.yaml",
            "inventory/notes.txt",
            "other/x.yaml",
        ):
            write(tmp_path / name, "")
        return tmp_path

    def names(self, folder: Path, *args: object) -> list[str]:
        option, environ = (*args, None)[0], (*args, {}, {})[1] if len(args) > 1 else {}
        return [str(path.relative_to(folder)) for path in find(folder, option, environ)]  # type: ignore[arg-type]

    def test_where_there_is_none_the_embedded_host_is_meant(self, tmp_path: Path) -> None:
        lab = tmp_path / ".lab/gpuctl.yaml"
        lab.parent.mkdir()
        lab.touch()
        assert find(tmp_path, None, {}) == (lab,)
        assert find(tmp_path, None, {"GPUCTL_INVENTORY": "mine.yaml"}) == (tmp_path / "mine.yaml",)
        (tmp_path / "gpuctl.yaml").touch()
        assert find(tmp_path, None, {}) == (tmp_path / "gpuctl.yaml",)

    def test_here_means_gpuctl_yaml_and_the_inventory_folder_without_the_examples(self, folder: Path) -> None:
        assert self.names(folder) == ["gpuctl.yaml", "inventory/a.yml", "inventory/b.yaml"]

    def test_the_option_beats_the_environment(self, folder: Path) -> None:
        environ = {"GPUCTL_INVENTORY": "gpuctl.yaml"}
        assert self.names(folder, ("other/x.yaml",), environ) == ["other/x.yaml"]
        assert self.names(folder, Path("other"), environ) == ["other/x.yaml"]
        assert self.names(folder, (), environ) == ["gpuctl.yaml"]

    def test_the_environment_may_name_several(self, folder: Path) -> None:
        environ = {"GPUCTL_INVENTORY": "other:gpuctl.yaml:other/x.yaml"}
        assert self.names(folder, None, environ) == ["other/x.yaml", "gpuctl.yaml"]

    def test_a_named_example_is_read(self, folder: Path) -> None:
        assert self.names(folder, "inventory/lab.yaml") == ["inventory/lab.yaml"]

    def test_nothing_here_is_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        assert find(tmp_path / "empty", None, {}) == ()

    def test_a_missing_named_file_is_told_on_loading(self, tmp_path: Path) -> None:
        files = find(tmp_path, "gone.yaml", {})
        assert "No such file" in mistakes(*files)[0]


WORDS = """
hosts containers thresholds lab api ssh url user password token host vmid gpus count weights repo to engine kind model
env bench tp methods auto https://a:8006 root@pam env:A file:x 1 200 1.5 true ~ & * << ! | > - ? : , [ ] { } &a *a
!!binary !!int '' " # --- ... %YAML \\ud800
"""
SHAPED = st.lists(
    st.tuples(
        st.sampled_from(["", "  ", "    ", "- "]),
        st.sampled_from(WORDS.split()),
        st.sampled_from([": ", " ", "\n"]),
    ),
    max_size=25,
)


class TestAnything:
    def load(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        with contextlib.suppress(ConfigError):
            load((path,))

    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.binary(max_size=120))
    def test_any_bytes_load_or_are_a_configuration_error(self, tmp_path: Path, content: bytes) -> None:
        self.load(tmp_path / "a.yaml", content)

    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.text(max_size=120))
    def test_any_text_loads_or_is_a_configuration_error(self, tmp_path: Path, text: str) -> None:
        self.load(tmp_path / "a.yaml", text.encode("utf-8", "surrogatepass"))

    @pytest.mark.slow
    @settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(SHAPED)
    def test_anything_like_an_inventory_loads_or_is_a_configuration_error(
        self, tmp_path: Path, parts: list[tuple[str, str, str]]
    ) -> None:
        self.load(tmp_path / "a.yaml", "".join("".join(part) for part in parts).encode())

    @pytest.mark.slow
    @settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(
                        ["hosts", "containers", "api", "ssh", "weights", "engine", "env", "bench", "tp", "a"]
                    ),
                    inner,
                    max_size=4,
                )
            ),
            max_leaves=15,
        )
    )
    def test_any_values_in_any_place_load_or_are_a_configuration_error(
        self, tmp_path: Path, value: object
    ) -> None:
        import json

        self.load(tmp_path / "a.yaml", json.dumps({"hosts": value, "containers": {"a": value}}).encode())


def test_escapes_beyond_unicode_are_a_mistake() -> None:
    assert positions.parse('a: "\\UFFFFFFFF"').mistakes
    assert positions.parse('a: "\\ud800"').mistakes
