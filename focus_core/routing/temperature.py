"""Control: one learned factor a layer on the scores of far pairs, and no groups at all.

A router sees the training text and the dense model does not. This control sees the same text with almost no
parameters, so what it gains is adaptation, not routing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from focus_core.adapter import Adapter


@dataclass(frozen=True)
class FarTemperatureConfig:
    """Number of ``layers``."""

    layers: int


class FarTemperature(Adapter):
    """``log_factor`` (L,): far scores are multiplied by its exponential; zero leaves the model as it is."""

    kind = "temperature"
    config_class = FarTemperatureConfig

    def __init__(self, config: FarTemperatureConfig) -> None:
        super().__init__(config)
        self.log_factor = nn.Parameter(torch.zeros(config.layers))

    def factor(self, layer: int) -> torch.Tensor:
        """The factor of this layer's far scores."""
        return self.log_factor[layer].exp()
