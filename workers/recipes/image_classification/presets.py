"""Presets of the image-classification recipe. A preset names all that it stands for, defaults included, so that
whatever is changed afterwards shows as a difference."""

from __future__ import annotations

from workers.contract.presets import Preset

_COMMON = {
    "optimizer.kind": "adamw",
    "optimizer.beta1": 0.9,
    "optimizer.beta2": 0.999,
    "optimizer.epsilon": 1e-8,
    "optimizer.layer_decay": 1.0,
    "schedule.warmup_steps": None,
    "schedule.warmup_fraction": 0.1,
    "schedule.decay": "cosine",
    "clipping.mode": "global_norm",
    "clipping.max_norm": 5.0,
    "loss_scaling.init_scale": 65536.0,
    "loss_scaling.growth_interval": 2000,
    "loss_scaling.growth_factor": 2.0,
    "loss_scaling.backoff_factor": 0.5,
    "loss_scaling.hysteresis": 1,
    "augmentation.rotation": 0.0,
    "augmentation.brightness": 0.0,
    "augmentation.contrast": 0.0,
    "augmentation.erasing": 0.0,
    "augmentation.mixup": 0.0,
}

SMALL = Preset(
    "small_pictures",
    "Small pictures",
    "Digits, signs, thumbnails of 8 to 64 pixels: a narrow ResNet-18 whose stem keeps all pixels, shifted pictures, nothing "
    "mirrored, AdamW at 3e-3.",
    _COMMON
    | {
        "data.size": 16,
        "model.source": "scratch",
        "model.architecture": "resnet18",
        "model.stem": "auto",
        "model.width": 16,
        "training.epochs": 10,
        "training.batch_size": 64,
        "optimizer.learning_rate": 3e-3,
        "optimizer.weight_decay": 0.05,
        "augmentation.crop": "shift",
        "augmentation.padding": 0.125,
        "augmentation.flip": False,
        "regularisation.dropout": 0.0,
        "regularisation.drop_path": 0.0,
        "regularisation.label_smoothing": 0.0,
    },
)

PHOTOGRAPHS = Preset(
    "photographs",
    "Photographs, pretrained",
    "ResNet-50 of paddle.vision, trained on ImageNet, at 224 pixels: a low rate that falls towards the stem, enlarged parts, "
    "mirrored pictures, some label smoothing.",
    _COMMON
    | {
        "data.size": 224,
        "model.source": "pretrained",
        "model.architecture": "resnet50",
        "training.epochs": 10,
        "training.batch_size": 32,
        "optimizer.learning_rate": 1e-4,
        "optimizer.weight_decay": 0.05,
        "optimizer.layer_decay": 0.85,
        "clipping.max_norm": 2.0,
        "augmentation.crop": "resize",
        "augmentation.least_area": 0.35,
        "augmentation.flip": True,
        "augmentation.brightness": 0.2,
        "augmentation.contrast": 0.2,
        "regularisation.dropout": 0.0,
        "regularisation.drop_path": 0.0,
        "regularisation.label_smoothing": 0.1,
    },
)

VIT = Preset(
    "vit",
    "Vision Transformer from scratch",
    "A small ViT: it knows nothing of pictures beforehand, so that it takes longer training, a long warm-up, clipping at 1, and "
    "regularisation in every layer.",
    _COMMON
    | {
        "data.size": 32,
        "model.source": "scratch",
        "model.architecture": "vit",
        "model.patch": 4,
        "model.hidden_size": 96,
        "model.layers": 6,
        "model.heads": 4,
        "training.epochs": 60,
        "training.batch_size": 64,
        "optimizer.learning_rate": 1e-3,
        "optimizer.weight_decay": 0.05,
        "clipping.max_norm": 1.0,
        "augmentation.crop": "shift",
        "augmentation.padding": 0.125,
        "augmentation.flip": False,
        "augmentation.erasing": 0.1,
        "regularisation.dropout": 0.0,
        "regularisation.drop_path": 0.1,
        "regularisation.label_smoothing": 0.1,
    },
)

PRESETS = (SMALL, PHOTOGRAPHS, VIT)
