"""Errors a user can act on. Every message says where, what was found, and what to do.

AssayError
├── RecipeError      a recipe's key or value
├── SourceError      a source or benchmark file, or a whole pool
├── StoreError       the store's files, version or lock
├── ModelError       a model, its tokenizer or its chat template
├── EngineError      a generation engine or its server
└── SandboxError     programs cannot be isolated on this machine

AssayWarning         a setting that is legal and almost surely not meant
"""

__all__ = ["AssayError", "AssayWarning", "EngineError", "ModelError", "RecipeError", "SandboxError",
           "SourceError", "StoreError"]


class AssayError(Exception):
    """A fault that the user can mend; the command prints it without a traceback."""


class RecipeError(AssayError):
    """A recipe names an unknown key, value or file."""


class SourceError(AssayError):
    """A source or benchmark cannot be read, or nothing of it is left."""


class StoreError(AssayError):
    """The store's folder is damaged, locked, or of a newer version."""


class ModelError(AssayError):
    """A model folder lacks something that the job needs."""


class EngineError(AssayError):
    """An engine cannot start, or a server does not answer."""


class SandboxError(AssayError):
    """This machine offers no way to isolate a program."""


class AssayWarning(UserWarning):
    """Legal, and almost surely not meant."""
