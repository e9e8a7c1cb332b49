"""A tree of real processes, as the chaos of trees has it."""

from chaos.trees import HEALED_S, Tree

__all__ = ["HEALED_S", "Tree"]
