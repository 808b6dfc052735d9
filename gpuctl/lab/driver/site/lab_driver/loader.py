"""Makes `ctypes.CDLL` of the two driver libraries give the stand-in, without loading ctypes itself."""

import sys

LIBRARIES = {"libcuda.so.1": "lab_driver.cuda", "libnvidia-ml.so.1": "lab_driver.nvml"}


class _AfterCtypes:
    """A finder that lets the normal ones find ctypes, and patches it once it has run."""

    def find_spec(self, name, path=None, target=None):
        if name != "ctypes":
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(name, path, target)
            if spec is not None and spec.loader is not None:
                _hook(spec.loader)
                return spec
        return None


def _hook(ctypes_loader):
    run = ctypes_loader.exec_module

    def exec_module(module):
        run(module)
        patch(module)

    ctypes_loader.exec_module = exec_module


def patch(ctypes):
    """Give CDLL a `__new__` that answers the two sonames; the class itself stays, also for `import *`."""

    def new(cls, name=None, *args, **kwargs):
        module = LIBRARIES.get(name) if isinstance(name, str) else None
        if module is not None:
            from importlib import import_module

            from lab_driver import state

            if state.installed(name):
                return import_module(module).library()
        return object.__new__(cls)

    ctypes.CDLL.__new__ = staticmethod(new)


def install():
    """Patch ctypes now or when it is first imported."""
    if "ctypes" in sys.modules:
        patch(sys.modules["ctypes"])
    else:
        sys.meta_path.insert(0, _AfterCtypes())
