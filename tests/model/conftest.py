"""Tensors here are tiny: on a busy machine, torch's threads would only wait for each other."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
