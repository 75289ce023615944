"""Load-test commands: ``load``, ``replay`` and ``record``."""
