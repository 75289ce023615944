"""The commands of the load lab: ``load``, ``replay`` and ``record``."""
