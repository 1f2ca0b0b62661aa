import contextlib
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hdpsim
from hdpsim.yaml_loader import YamlError, load_document, load_yaml

DATA = Path(hdpsim.__file__).parent / "cost_models" / "data"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e9", 1e9),
        ("5e-6", 5e-6),
        ("-1.5", -1.5),
        (".5", 0.5),
        ("12", 12),
        ("-0", 0),
        ("0x10", 16),
        ("on", "on"),
        ("yes", "yes"),
        ("off", "off"),
        ("n", "n"),
        ("12:30", "12:30"),  # 750 in YAML 1.1
        ("010", "010"),  # 8 in YAML 1.1
        ("1_000", "1_000"),
        ("2026-01-01", "2026-01-01"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("'1e9'", "1e9"),
        ("400Gbps", "400Gbps"),
    ],
)
def test_scalars_mean_what_they_look_like(text: str, value: object) -> None:
    result = load_yaml(f"key: {text}")["key"]
    assert result == value
    assert type(result) is type(value)


def test_keys_are_always_text() -> None:
    assert load_yaml("on: 1\n8: 2\ntrue: 3") == {"on": 1, "8": 2, "true": 3}


def test_every_value_knows_its_line() -> None:
    document = load_document("a:\n  b: 1\n  c:\n    - x\n    - {d: 2}\n", name="s.yaml")
    assert document.where("a.b") == "s.yaml:2"
    assert document.where("a.c[1].d") == "s.yaml:5"
    assert document.where("a.c[1].missing") == "s.yaml:5"  # the nearest thing that is there
    assert document.where("nothing") == "s.yaml"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb: 2\na: 3", 3, "given twice"),
        ("x:\n  a: 1\n  a: 2", 3, "'x.a' is given twice"),
        ("a: !!python/object/apply:os.system [ls]", 1, "tag"),
        ("a: !mine 1", 1, "tag"),
        ("a: [1, 2", 1, "not valid YAML"),
        ("ok: 1\n\tb: 2", 2, "not valid YAML"),
        ("a: &x [*x]", 1, "contains itself"),
        ("a: 1\n---\nb: 2", 2, "single document"),
        ("ok: 1\na: \x07", 2, "not allowed"),
        ("[1, 2]: 3", 1, "key must be a word"),
        ("a: " + "9" * 5000, 1, "not a number"),
    ],
)
def test_faults_name_their_line(text: str, line: int, words: str) -> None:
    with pytest.raises(YamlError, match=words) as caught:
        load_document(text, name="s.yaml")
    assert caught.value.line == line
    assert str(caught.value).startswith(f"s.yaml:{line}:")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_too_deep_and_too_large_texts_are_refused() -> None:
    with pytest.raises(YamlError, match="more than 50 levels deep"):
        load_yaml("[" * 5000)
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 8)}]\n" for i in range(1, 9))
    with pytest.raises(YamlError, match="100,000 values"):
        load_yaml(bomb)


def test_files(tmp_path: Path) -> None:
    good = tmp_path / "good.yaml"
    good.write_text("\ufeffa: 1\n", encoding="utf-8")
    assert load_yaml(good) == {"a": 1}
    with pytest.raises(YamlError, match="no such file"):
        load_yaml(tmp_path / "absent.yaml")
    with pytest.raises(YamlError, match="directory"):
        load_yaml(tmp_path)
    (tmp_path / "bytes.yaml").write_bytes(b"a: \xff\xfe")
    with pytest.raises(YamlError, match="UTF-8"):
        load_yaml(tmp_path / "bytes.yaml")
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert load_yaml(tmp_path / "empty.yaml") is None


@given(st.text(alphabet="ab:-[]{}#&*!|>'\"%@`, \n0123456789.e", max_size=40))
def test_any_text_is_read_or_refused_cleanly(text: str) -> None:
    with contextlib.suppress(YamlError):
        load_yaml(text)


@pytest.mark.parametrize("path", sorted(DATA.rglob("*.yaml"))[::12], ids=lambda path: path.name)
def test_shipped_files_mean_the_same_to_the_fast_parser(path: Path) -> None:
    fast, slow = load_document(path), load_document(path.read_text(encoding="utf-8"))
    assert (fast.data, fast.lines) == (slow.data, slow.lines)
