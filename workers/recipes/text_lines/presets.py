"""Presets of the recipe for text lines. A preset names all that it stands for, defaults included, so that whatever is
changed afterwards shows as a difference."""

from __future__ import annotations

from workers.contract.presets import Preset

STANDARD = Preset(
    "standard",
    "Standard",
    "AdamW at 1e-3 with a short warm-up, gradients cut above a norm of 5 as for all recurrent nets, lines changed a little.",
    {
        "model.channels": 32,
        "model.hidden_size": 128,
        "model.layers": 2,
        "model.loss_per": "character",
        "training.epochs": 30,
        "training.batch_size": 32,
        "optimizer.kind": "adamw",
        "optimizer.learning_rate": 1e-3,
        "optimizer.weight_decay": 1e-4,
        "optimizer.beta1": 0.9,
        "optimizer.beta2": 0.999,
        "optimizer.epsilon": 1e-8,
        "schedule.warmup_steps": None,
        "schedule.warmup_fraction": 0.05,
        "schedule.decay": "linear",
        "clipping.mode": "global_norm",
        "clipping.max_norm": 5.0,
        "loss_scaling.init_scale": 65536.0,
        "loss_scaling.growth_interval": 2000,
        "loss_scaling.growth_factor": 2.0,
        "loss_scaling.backoff_factor": 0.5,
        "loss_scaling.hysteresis": 1,
        "augmentation.tilt": 0.1,
        "augmentation.slant": 0.15,
        "augmentation.scale": 0.08,
        "augmentation.light": 0.2,
        "augmentation.blur": 0.5,
        "augmentation.noise": 0.03,
        "regularisation.dropout": 0.1,
        "early_stopping.patience": None,
        "early_stopping.min_delta": 0.0,
    },
)

QUICK = Preset(
    "quick",
    "Quick",
    "A small model for printed lines, and for trying things out on a CPU: half the channels and a higher rate.",
    STANDARD.values
    | {
        "model.channels": 16,
        "model.hidden_size": 96,
        "model.layers": 1,
        "training.epochs": 12,
        "optimizer.learning_rate": 2e-3,
    },
)

SMALL = Preset(
    "small",
    "Small labelled set",
    "A few thousand lines or less: more changes to them, more dropout and decay, more epochs, and an end when five "
    "evaluations in a row bring nothing.",
    STANDARD.values
    | {
        "training.epochs": 100,
        "optimizer.weight_decay": 0.01,
        "augmentation.tilt": 0.15,
        "augmentation.slant": 0.3,
        "augmentation.scale": 0.15,
        "augmentation.light": 0.4,
        "augmentation.noise": 0.06,
        "regularisation.dropout": 0.3,
        "early_stopping.patience": 5,
    },
)

PRESETS = (STANDARD, QUICK, SMALL)
