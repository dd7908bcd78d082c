"""The models' packages, each built once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.export.models import MODELS, make


@pytest.fixture(scope="session")
def package(tmp_path_factory):
    """A function: a model's name to its step, batch, PyTorch's losses and exported folder."""
    found = {}

    def of(name):
        if name not in found:
            made = make(name)
            folder = made.step.export(tmp_path_factory.mktemp(name), prefix=name)
            found[name] = SimpleNamespace(**vars(made), name=name, folder=folder)
        return found[name]

    return of


@pytest.fixture(params=MODELS)
def exported(request, package):
    """Every model in turn."""
    return package(request.param)
