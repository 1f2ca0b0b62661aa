"""The built wheel: one import name, every file of the packages is in it, and a user's own folders do not disturb it."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INNER = ("traces", "cost_models", "simulator", "experiments")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    (built,) = folder.glob("hdpsim-*-py3-none-any.whl")
    return built


@pytest.mark.slow
def test_the_wheel_holds_one_package_with_all_data(wheel: Path) -> None:
    shipped = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert {name.partition("/")[0] for name in shipped} == {"hdpsim"}
    own = {f"hdpsim/{path.name}" for path in (ROOT / "hdpsim").iterdir() if path.is_file()}
    inner = {
        f"hdpsim/{path.relative_to(ROOT).as_posix()}"
        for package in INNER
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert shipped == own | inner
    assert "hdpsim/py.typed" in shipped  # also of all packages inside (PEP 561)


@pytest.mark.slow
def test_a_wheel_built_from_the_source_distribution_is_the_same(wheel: Path, tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path), "-t"]
    subprocess.run([*build, "sdist"], cwd=ROOT, capture_output=True, check=True)
    (sdist,) = tmp_path.glob("hdpsim-*.tar.gz")
    with tarfile.open(sdist) as packed:
        packed.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    subprocess.run([*build, "wheel"], cwd=source, capture_output=True, check=True)
    (again,) = tmp_path.glob("hdpsim-*.whl")
    first, second = (
        {one.filename: one.CRC for one in zipfile.ZipFile(path).infolist() if "RECORD" not in one.filename}
        for path in (wheel, again)
    )
    assert first == second


@pytest.mark.slow
def test_folders_of_a_user_with_everyday_names_do_not_disturb_it(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    for name in INNER:
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not yours')\n")
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "__init__.py").write_text("raise RuntimeError('not yours')\n")
    code = (
        "import sys; sys.path[:0] = ['', 'site']; import hdpsim; hdpsim.load_trace('debian-code');"
        "hdpsim.load_scenario('quickstart-8gpu'); from hdpsim.experiments.cli.app import cli;"
        "print(hdpsim.__file__); cli(['scenarios'])"
    )
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ""}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("site/hdpsim") or str(site) in done.stdout.splitlines()[0]
    assert "quickstart-8gpu" in done.stdout
