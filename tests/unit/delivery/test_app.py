"""The app refuses to run on versions whose private names were not tested."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest

from streams import app
from streams.errors import EnvironmentFault


def test_the_tested_versions_are_installed() -> None:
    app.check_versions()


@pytest.mark.parametrize("package", sorted(app.TESTED))
def test_another_version_is_refused(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "version", lambda name: "9.9.9" if name == package else app.TESTED[name])
    with pytest.raises(EnvironmentFault, match=rf"{package} .* is required, found 9\.9\.9"):
        app.check_versions()


def test_an_absent_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(app, "version", absent)
    with pytest.raises(EnvironmentFault, match="found none"):
        app.check_versions()
