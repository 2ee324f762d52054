"""Every wrong file gives one clear error: the file, the line, the key and what to do."""

from pathlib import Path

import pytest

from topologies.errors import InvalidFileError
from topologies.load import load_topology

GOOD = """\
name: t
defaults: {delay: 10ms}
sites:
  dc1: {}
  dc2: {workers: 2}
links:
  - endpoints: [dc1, dc2]
    rate: 100mbit
    backward: {rate: 50mbit}
"""


def fail(tmp_path: Path, text: str | bytes) -> str:
    file = tmp_path / "wan.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidFileError) as caught:
        load_topology(file)
    message = str(caught.value)
    assert str(file) in message
    assert len(message) < 400 and "\n" not in message
    assert caught.value.exit_code == 2
    return message.replace(str(file), "wan.yaml")


def test_the_good_file_is_good(tmp_path: Path) -> None:
    (tmp_path / "wan.yaml").write_text(GOOD)
    assert load_topology(tmp_path / "wan.yaml").name == "t"
    assert load_topology(str(tmp_path / "wan.yaml")).sites["dc2"].workers == 2


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("rate: 100mbit", "rat: 100mbit", ["line 8: links[0].rat: unknown key 'rat'", "did you mean rate?"]),
        ("{rate: 50mbit}", "{rates: 50mbit}", ["line 9", "links[0].backward.rates", "did you mean rate?"]),
        ("{workers: 2}", "{worker: 2}", ["line 5", "sites.dc2.worker", "did you mean workers?"]),
        ("{delay: 10ms}", "{dalay: 10ms}", ["line 2", "defaults.dalay", "did you mean delay?"]),
        ("defaults", "default", ["line 2", "unknown key 'default'", "did you mean defaults?"]),
        ("name: t", "name: t\nzzz: 1", ["line 2", "'zzz'", "known: name, defaults, sites, links"]),
        ("rate: 100mbit", "rate: 100", ["links[0].rate", "100 is a bare number", "for example 100mbit"]),
        ("delay: 10ms", "delay: 10", ["defaults.delay", "10 is a bare number", "10ms"]),
        ("rate: 100mbit", "rate: 100MBps", ["links[0].rate", "bytes", "800mbit", "100mbit"]),
        ("rate: 100mbit", "rate: 0mbit", ["links[0].rate", "not above zero"]),
        ("rate: 100mbit", "rate: -1mbit", ["links[0].rate", "not above zero"]),
        ("rate: 100mbit", "rate: 100mbit\n    loss: 150%", ["line 9", "150%", "between 0% and 100%"]),
        ("rate: 100mbit", "rate: 100mbit\n    loss: 101%", ["line 9", "101%", "between 0% and 100%"]),
        ("rate: 100mbit", "rate: 100mbit\n    loss: 0.1", ["links[0].loss", "bare number", "0.1%"]),
        ("rate: 100mbit", "rate: fast", ["links[0].rate", "'fast' is not a rate"]),
        ("rate: 100mbit", "rate: [100mbit]", ["links[0].rate", "is not a rate"]),
        ("    rate: 100mbit\n", "", ["line 7", "forward direction of dc1-dc2 has no rate"]),
        ("[dc1, dc2]", "[dc1, dc1]", ["line 7", "links[0].endpoints", "dc1 to itself"]),
        ("[dc1, dc2]", "[dc1, dc22]", ["links[0].endpoints", "no site 'dc22'", "did you mean dc2?"]),
        ("[dc1, dc2]", "[dc1]", ["links[0].endpoints", "exactly two sites"]),
        ("[dc1, dc2]", "[dc1, dc2, dc1]", ["links[0].endpoints", "exactly two sites"]),
        ("[dc1, dc2]", "dc1-dc2", ["links[0].endpoints", "text, not a list"]),
        ("dc1: {}", "dc1: {}\n  DC_3: {}", ["line 5", "DC_3", "is not a site name"]),
        ("dc1: {}", "dc1: {}\n  zürich: {}", ["zürich", "is not a site name"]),
        ("dc1: {}", f"dc1: {{}}\n  {'a' * 33}: {{}}", ["is not a site name", "1 to 32"]),
        ("dc1: {}", f"dc1: {{}}\n  {'a' * 80}: {{}}", ["is not a site name", "1 to 32"]),
        ("dc1: {}", "dc1: {}\n  no: {}", ["sites", "False", "quote it"]),
        ("dc1: {}", "dc1: {}\n  7: {}", ["sites", "7", "quote it"]),
        ("dc1: {}", "dc1: {}\n  dc3: {}\n  dc4: {}", ["links", "dc3, dc4 cannot be reached from dc1"]),
        ("dc1: {}", "dc1: {}\n  dc1: {}", ["line 5", "'dc1' was already given on line 4"]),
        ("name: t", "name: t\nname: u", ["line 2", "'name' was already given on line 1"]),
        ("{workers: 2}", "{workers: 2, workers: 3}", ["line 5", "'workers' was already given"]),
        ("name: t\n", "", ["the key 'name' is missing"]),
        ("name: t", "name: ../../etc", ["line 1", "name", "is not a topology name"]),
        ("{workers: 2}", "{workers: 0}", ["sites.dc2.workers", "greater than or equal to 1"]),
        ("{workers: 2}", "{workers: '2'}", ["sites.dc2.workers", "integer"]),
        ("{workers: 2}", "3", ["sites.dc2", "number, not a map"]),
        ("{workers: 2}", "{lat: 91}", ["sites.dc2.lat", "less than or equal to 90"]),
        ("rate: 100mbit", "forward: 100mbit", ["links[0].forward", "text, not a map"]),
    ],
)  # fmt: skip
def test_wrong_values(tmp_path: Path, old: str, new: str, expected: list[str]) -> None:
    assert old in GOOD
    message = fail(tmp_path, GOOD.replace(old, new, 1))
    for part in expected:
        assert part in message, message


def test_links_given_twice(tmp_path: Path) -> None:
    message = fail(tmp_path, GOOD + "  - {endpoints: [dc2, dc1], rate: 1mbit}\n")
    assert "line 10: links[1].endpoints: dc2 and dc1 are already joined by links[0]" in message


def test_no_sites(tmp_path: Path) -> None:
    assert "sites: there is no site" in fail(tmp_path, "name: t\nsites: {}\n")
    assert "map" in fail(tmp_path, "name: t\nsites: [dc1, dc2]\n")


def test_several_mistakes_name_the_first_and_count_the_rest(tmp_path: Path) -> None:
    message = fail(tmp_path, GOOD.replace("delay: 10ms", "delay: 10").replace("rate: 50mbit", "rate: 50"))
    assert "defaults.delay" in message and "one more" in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "the file is empty"),
        ("# only a comment\n", "the file is empty"),
        ("- a\n- b\n", "the top level is a list, not a map"),
        ("hello", "the top level is a text, not a map"),
        ("name: [unclosed\n", "not valid YAML"),
        ("name: t\n\tsites: {}\n", "not valid YAML"),
        ("name: !!python/object/apply:os.system [ls]\n", "not valid YAML"),
        ("[" * 1500, "nested too deeply"),
        ("{a: " * 60 + "1" + "}" * 60, "nested too deeply"),
        ("name: &a [*a]\n", "alias refers to what contains it"),
        ("name: t\n---\nname: u\n", "not valid YAML"),
        ("? [a]\n: 1\n", "a key is a list or a map"),
        (b"name: \xff\xfe\n", "not UTF-8"),
        ("name: t\x00\n", "not valid YAML"),
        ("name: t\n" + "# filler\n" * 120_000, "larger than"),
    ],
)
def test_files_that_are_not_topologies(tmp_path: Path, text: str | bytes, expected: str) -> None:
    assert expected in fail(tmp_path, text)


def test_an_alias_bomb_is_refused_before_it_unfolds(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    assert "aliases unfold to more than" in fail(tmp_path, "\n".join(lines))


def test_a_bomb_of_merge_keys_is_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 {k: x}"] + [
        f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}" for i in range(1, 12)
    ]
    assert "aliases unfold to more than" in fail(tmp_path, "\n".join(lines))


def test_honest_aliases_are_welcome(tmp_path: Path) -> None:
    file = tmp_path / "wan.yaml"
    file.write_text(
        GOOD.replace("{delay: 10ms}", "&d {delay: 10ms}").replace("{rate: 50mbit}", "{rate: 50mbit, <<: *d}")
    )
    assert load_topology(file).directed[1].delay.ms == 10


def test_missing_files_name_what_is_near(tmp_path: Path) -> None:
    (tmp_path / "wan.yaml").write_text(GOOD)
    with pytest.raises(InvalidFileError, match=r"there is no file .*wam\.yaml.*did you mean wan\.yaml"):
        load_topology(tmp_path / "wam.yaml")
    with pytest.raises(InvalidFileError, match="there is no folder"):
        load_topology(tmp_path / "nowhere" / "wan.yaml")
    with pytest.raises(InvalidFileError, match="folder, not a file"):
        load_topology(tmp_path)
    with pytest.raises(InvalidFileError, match="did you mean netstorm-9"):
        load_topology("netstorm9")


def test_a_plain_word_may_be_a_file_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mywan").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    assert load_topology("mywan").name == "t"


def test_json_is_read_as_well(tmp_path: Path) -> None:
    import json

    file = tmp_path / "topology.json"
    file.write_text(json.dumps(load_topology("netstorm-9").to_dict(), indent=2))
    assert load_topology(file).rates() == load_topology("netstorm-9").rates()
