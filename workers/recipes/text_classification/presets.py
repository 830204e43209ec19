"""Presets of the text-classification recipe. A preset names all that it stands for, defaults included, so that
whatever is changed afterwards shows as a difference."""

from __future__ import annotations

from workers.contract.presets import Preset

_SCALING = {
    "loss_scaling.init_scale": 65536.0,
    "loss_scaling.growth_interval": 2000,
    "loss_scaling.growth_factor": 2.0,
    "loss_scaling.backoff_factor": 0.5,
    "loss_scaling.hysteresis": 1,
}

STANDARD = Preset(
    "standard",
    "Standard",
    "Fine-tuning of a pretrained model: AdamW at 5e-5, decay 0.01 without biases and LayerNorm, clipping at 1, "
    "a tenth of warm-up, then linear decay.",
    {
        "training.epochs": 3,
        "optimizer.kind": "adamw",
        "optimizer.learning_rate": 5e-5,
        "optimizer.weight_decay": 0.01,
        "optimizer.beta1": 0.9,
        "optimizer.beta2": 0.999,
        "optimizer.epsilon": 1e-8,
        "schedule.warmup_steps": None,
        "schedule.warmup_fraction": 0.1,
        "schedule.decay": "linear",
        "clipping.mode": "global_norm",
        "clipping.max_norm": 1.0,
        **_SCALING,
        "regularisation.dropout": 0.1,
        "regularisation.label_smoothing": 0.0,
        "regularisation.drop_path": 0.0,
        "early_stopping.patience": None,
        "early_stopping.min_delta": 0.0,
    },
)

SMALL = Preset(
    "small",
    "Small labelled set",
    "A few thousand rows or less: more dropout, little weight decay, more epochs, and an end when three evaluations "
    "in a row bring nothing.",
    STANDARD.values
    | {
        "training.epochs": 10,
        "optimizer.weight_decay": 5e-4,
        "regularisation.dropout": 0.3,
        "early_stopping.patience": 3,
        "early_stopping.min_delta": 0.001,
    },
)

SCRATCH = Preset(
    "scratch",
    "From scratch",
    "Random weights: ten times the rate of fine-tuning, gradients cut only above 5, more epochs.",
    STANDARD.values
    | {
        "training.epochs": 10,
        "optimizer.learning_rate": 5e-4,
        "clipping.max_norm": 5.0,
    },
)

PRESETS = (STANDARD, SMALL, SCRATCH)
