"""The start-up check that nobody else's `traces` is imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from experiments.distribution_check import check_distribution
from hdpsim.errors import UserInputError


def test_our_own_packages_pass() -> None:
    check_distribution()


def test_a_package_from_elsewhere_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shadowing_package").mkdir()
    (tmp_path / "shadowing_package" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(UserInputError, match="pip uninstall shadowing_package") as caught:
        check_distribution(("hdpsim", "shadowing_package"))
    assert str(tmp_path) in str(caught.value)


def test_a_missing_package_is_named() -> None:
    with pytest.raises(UserInputError, match="'no_such_package' of hdpsim cannot be found"):
        check_distribution(("no_such_package",))
