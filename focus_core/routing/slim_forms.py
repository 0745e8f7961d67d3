"""Which cache each layer keeps under Slim attention, as a gate on real activations decided."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from focus_core.adapter import Adapter
from focus_core.errors import InvalidInput

FORMS = ("k", "x", "v", "dense")


@dataclass(frozen=True)
class SlimFormsConfig:
    """``forms``: of each layer, one of ``FORMS``."""

    forms: list[str]

    def __post_init__(self) -> None:
        """Check the names."""
        if not self.forms or set(self.forms) - set(FORMS):
            raise InvalidInput(f"The forms are {self.forms}.", f"Each can be {', '.join(FORMS)}.")


class SlimForms(Adapter):
    """The form of every layer; ``errors`` (L, 3) are those that decided, of k, v and x (NaN where there is none).

    ``record`` says which text and dtype they were measured on, with every layer's reason; see ``slim_gate``.
    """

    kind = "slim"
    config_class = SlimFormsConfig

    def __init__(self, config: SlimFormsConfig) -> None:
        super().__init__(config)
        self.register_buffer("errors", torch.full((len(config.forms), 3), torch.nan))
