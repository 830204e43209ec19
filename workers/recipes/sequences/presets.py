"""Presets of the recipe for numeric sequences. A preset names all that it stands for, defaults included, so that
whatever is changed afterwards shows as a difference."""

from __future__ import annotations

from workers.contract.presets import Preset

RECURRENT = Preset(
    "recurrent",
    "Recurrent",
    "Gradients of recurrent nets grow with the length of the sequence, so they are cut above a norm of 5; AdamW at 3e-3, "
    "little decay, a short warm-up, normalised values, and a linear path from the newest eight time steps for what is far from "
    "the usual.",
    {
        "data.normalisation": "robust",
        "model.open_forget_gate": True,
        "model.linear_steps": 8,
        "model.loss": "squared",
        "training.epochs": 20,
        "training.batch_size": 64,
        "optimizer.kind": "adamw",
        "optimizer.learning_rate": 3e-3,
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
        "regularisation.dropout": 0.0,
        "early_stopping.patience": 5,
        "early_stopping.min_delta": 0.0,
    },
)

TAILS = Preset(
    "heavy_tails",
    "Heavy tails",
    "Amounts and prices with rare, huge values: as Recurrent, but errors beyond one deviation count only once (Huber), and "
    "clipping is closer.",
    RECURRENT.values | {"model.loss": "huber", "clipping.max_norm": 1.0},
)

SMALL = Preset(
    "small",
    "Small set",
    "A few hundred sequences: as Recurrent with more dropout and decay, smaller batches, and an end when three evaluations in "
    "a row bring nothing.",
    RECURRENT.values
    | {
        "training.epochs": 50,
        "training.batch_size": 16,
        "optimizer.weight_decay": 0.01,
        "regularisation.dropout": 0.3,
        "early_stopping.patience": 3,
    },
)

PRESETS = (RECURRENT, TAILS, SMALL)
