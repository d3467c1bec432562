"""Exceptions of kvlathe. Each carries the message of the library: what, where, what to do."""


class KvlatheError(Exception):
    """Any error of the library; more exact ones are subclasses."""


class InvalidArgumentError(KvlatheError, ValueError):
    """Something was asked for that cannot be."""


class NotFoundError(KvlatheError, FileNotFoundError):
    """A file or a name is not there."""


class DataLossError(KvlatheError):
    """A file is damaged, or numbers are not finite."""


class ResourceExhaustedError(KvlatheError, MemoryError):
    """There is not enough memory, or a budget is too small."""


class UnsupportedError(KvlatheError, NotImplementedError):
    """A form that is well made, and that kvlathe does not read."""


class FailedPreconditionError(KvlatheError, RuntimeError):
    """The object is closed, or belongs to another process."""


class UnavailableError(KvlatheError):
    """Too many requests wait already; ask again later."""
