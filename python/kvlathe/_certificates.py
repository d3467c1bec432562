"""Certificates for models that are fetched by HTTPS, on systems that have none of their own."""

import importlib
import importlib.util

from kvlathe import _native


def certificate_file() -> str | None:
    """The file of certifi where the system has no certificates and certifi is installed; otherwise None."""
    if _native.have_certificates() or importlib.util.find_spec("certifi") is None:
        return None
    return str(importlib.import_module("certifi").where())


def use_certificates() -> None:
    """Have models fetched by those of certifi, where there are no others."""
    file = certificate_file()
    if file is not None:
        _native.set_spare_certificates(file)
