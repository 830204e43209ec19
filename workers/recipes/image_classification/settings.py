"""Settings of the image-classification recipe, and nothing that needs Paddle."""

from __future__ import annotations

from pydantic import model_validator

from workers.contract.choices import Choice
from workers.contract.fields import Misfit, SettingsGroup, other_default, setting
from workers.contract.training import (
    CheckpointSettings,
    ClippingSettings,
    DeviceSettings,
    EarlyStoppingSettings,
    LimitSettings,
    LossScalingSettings,
    MonitoringSettings,
    OptimizerSettings,
    PrecisionSettings,
    ScheduleSettings,
    SpikeSettings,
    StartSettings,
    TrainingSettings,
    drop_path_setting,
    job_setting,
    label_smoothing_setting,
    weight_column_setting,
)


class Fit(Choice):
    CROP = "crop"
    PAD = "pad"
    STRETCH = "stretch"


class Normalisation(Choice):
    AUTO = "auto"
    TRAINING_ROWS = "training_rows"
    IMAGENET = "imagenet"


class ModelSource(Choice):
    SCRATCH = "scratch"
    PRETRAINED = "pretrained"
    JOB = "job"


class Architecture(Choice):
    """Names of paddle.vision, and a Vision Transformer, which it does not have."""

    RESNET18 = "resnet18"
    RESNET34 = "resnet34"
    RESNET50 = "resnet50"
    RESNET101 = "resnet101"
    RESNET152 = "resnet152"
    VIT = "vit"


class Stem(Choice):
    AUTO = "auto"
    SMALL = "small"
    LARGE = "large"


class Norm(Choice):
    BATCH = "batch"
    GROUP = "group"


# Up to this side a 7×7 convolution and max-pooling would leave too little of a picture.
SMALL_PICTURE = 64


class DataSettings(SettingsGroup):
    """How pictures become squares of pixels."""

    size: int = setting(
        32,
        "Picture size",
        "Width and height that every picture is brought to. 224 is what pretrained models were trained with.",
        unit="pixels",
        basic=True,
        ge=8,
        le=1024,
    )
    fit: Fit = setting(
        Fit.CROP,
        "Pictures that are no squares",
        "crop: the shorter side is brought to the size, and the middle is cut out; pad: the longer side is, with black beside; "
        "stretch: both sides are, whatever that does to the shape.",
    )
    normalisation: Normalisation = setting(
        Normalisation.AUTO,
        "Normalisation",
        "Mean and deviation of each colour, subtracted and divided by: training_rows: measured there; imagenet: those of "
        "ImageNet. auto: what the weights were trained with, so ImageNet's for pretrained ones and the other job's for those "
        "of a job; measured for random ones. Part of the exported model.",
    )
    weight_column: str | None = weight_column_setting()
    cache_gib: float = setting(
        2.0,
        "Memory for pictures",
        "Decoded pictures are kept in the memory of each rank if all of them fit into this; if not, they are decoded again for "
        "every batch. 0: never kept.",
        unit="GiB",
        ge=0,
        le=4096,
    )
    decoders: int = setting(
        4, "Decoding threads", "Pictures that one rank decodes at the same time.", unit="threads", ge=1, le=64
    )


class ModelSettings(StartSettings):
    """Where the weights come from. The sizes count only for random weights."""

    source: ModelSource = setting(
        ModelSource.SCRATCH,
        "Start from",
        "scratch: random weights; pretrained: what paddle.vision has trained on ImageNet; job: the model another job of this "
        "recipe exported.",
        basic=True,
    )
    job: int | None = job_setting(basic=True)
    architecture: Architecture = setting(
        Architecture.RESNET18,
        "Architecture",
        "A ResNet as paddle.vision has it, or vit: a Vision Transformer, for which there are no pretrained weights. The model of "
        "another job says itself what it is.",
        basic=True,
        only="source=scratch,pretrained",
    )
    stem: Stem = setting(
        Stem.AUTO,
        "Stem",
        "Of a ResNet. large: a 7×7 convolution and max-pooling, which leave a sixteenth of the pixels; small: a 3×3 convolution "
        "that leaves them all, for small pictures. auto: small up to a size of 64, unless weights are pretrained.",
        only="source=scratch",
    )
    width: int = setting(
        64,
        "Width",
        "Of a ResNet: channels of its first stage; each stage after it has twice as many. 16 is enough for digits.",
        unit="channels",
        ge=8,
        le=512,
        only="source=scratch",
    )
    norm: Norm = setting(
        Norm.BATCH,
        "Normalisation layers",
        "Of a ResNet. batch: BatchNorm, whose statistics are of each rank's own samples, so that more ranks with smaller "
        "batches train differently; group: GroupNorm in groups of about 16 channels, which knows no batch.",
        only="source=scratch",
    )
    patch: int = setting(
        4,
        "Patch",
        "Of a ViT: side of the squares that a picture is cut into; must divide the picture size.",
        unit="pixels",
        ge=1,
        le=64,
        only="architecture=vit",
    )
    hidden_size: int = setting(96, "Hidden size", "Width of a ViT.", ge=8, le=4096, only="architecture=vit")
    layers: int = setting(6, "Layers", "Transformer layers of a ViT.", ge=1, le=48, only="architecture=vit")
    heads: int = setting(
        4, "Heads", "Attention heads of a ViT; must divide the hidden size.", ge=1, le=64, only="architecture=vit"
    )

    @model_validator(mode="after")
    def _complete(self) -> ModelSettings:
        if self.source is ModelSource.PRETRAINED and self.architecture is Architecture.VIT:
            raise Misfit("paddle.vision has no pretrained weights for vit: choose a ResNet, or start from scratch.")
        if self.hidden_size % self.heads:
            raise Misfit(
                "The heads (%(heads)d) must divide the hidden size (%(hidden)d).",
                heads=self.heads,
                hidden=self.hidden_size,
            )
        return self


class RegularisationSettings(SettingsGroup):
    """Against learning the training rows by heart."""

    dropout: float = setting(
        0.0,
        "Dropout",
        "Share of activations set to zero in training: of a ResNet before its last layer, of a ViT after every branch and in "
        "attention.",
        basic=True,
        ge=0,
        lt=1,
    )
    drop_path: float = drop_path_setting("block")
    label_smoothing: float = label_smoothing_setting()


class Crop(Choice):
    NONE = "none"
    SHIFT = "shift"
    RESIZE = "resize"


class AugmentationSettings(SettingsGroup):
    """Every training picture is changed a little, each time anew. Evaluations see pictures as they are."""

    crop: Crop = setting(
        Crop.SHIFT,
        "Crop",
        "shift: moved by up to the padding below, what is uncovered gets the mean colour; resize: a random part is "
        "enlarged to the whole, as usual for photographs; none: as it is.",
        basic=True,
    )
    padding: float = setting(
        0.125, "Padding", "For shift: the most, as a share of the picture's side.", ge=0, le=0.5, only="crop=shift"
    )
    least_area: float = setting(
        0.35,
        "Smallest part",
        "For resize: the least share of the area that is enlarged; 0.08 is usual for ImageNet and long training.",
        gt=0,
        le=1,
        only="crop=resize",
    )
    flip: bool = setting(
        False,
        "Mirror",
        "Every other picture is mirrored, left and right. Not for digits, letters and signs.",
        basic=True,
    )
    rotation: float = setting(0.0, "Rotation", "Turned by up to so much, to either side.", unit="degrees", ge=0, le=180)
    brightness: float = setting(
        0.0, "Brightness", "Multiplied with 1 ± up to this.", ge=0, lt=1
    )  # fmt: skip
    contrast: float = setting(
        0.0, "Contrast", "Differences from the picture's own mean are multiplied with 1 ± up to this.", ge=0, lt=1
    )
    erasing: float = setting(
        0.0,
        "Random erasing",
        "Share of the pictures in which a rectangle of 0.02 to 0.33 of the area is set to the mean colour (Zhong et al. 2017).",
        ge=0,
        le=1,
    )
    mixup: float = setting(
        0.0,
        "Mixup",
        "α of mixup (Zhang et al. 2017): pictures of a batch are blended with one another, and so are their losses; 0.2 is usual. "
        "0: none.",
        ge=0,
        le=10,
    )


class ImageTrainingSettings(TrainingSettings):
    __doc__ = TrainingSettings.__doc__
    epochs: int = other_default(TrainingSettings, "epochs", 20)
    batch_size: int = other_default(TrainingSettings, "batch_size", 64)


class ImageOptimizerSettings(OptimizerSettings):
    __doc__ = OptimizerSettings.__doc__
    learning_rate: float = other_default(OptimizerSettings, "learning_rate", 1e-3)
    weight_decay: float = other_default(OptimizerSettings, "weight_decay", 0.05)
    undecayed: str | None = other_default(OptimizerSettings, "undecayed", "bias, norm, position")


class ImageClippingSettings(ClippingSettings):
    __doc__ = ClippingSettings.__doc__
    max_norm: float | None = other_default(ClippingSettings, "max_norm", 5.0)


class ImageClassificationSettings(SettingsGroup):
    """Train a ResNet or a Vision Transformer that gives each picture one label."""

    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    augmentation: AugmentationSettings = AugmentationSettings()
    training: ImageTrainingSettings = ImageTrainingSettings()
    optimizer: ImageOptimizerSettings = ImageOptimizerSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    clipping: ImageClippingSettings = ImageClippingSettings()
    precision: PrecisionSettings = PrecisionSettings()
    loss_scaling: LossScalingSettings = LossScalingSettings()
    regularisation: RegularisationSettings = RegularisationSettings()
    limits: LimitSettings = LimitSettings()
    spikes: SpikeSettings = SpikeSettings()
    checkpoints: CheckpointSettings = CheckpointSettings()
    early_stopping: EarlyStoppingSettings = EarlyStoppingSettings()
    monitoring: MonitoringSettings = MonitoringSettings()
    devices: DeviceSettings = DeviceSettings()

    @model_validator(mode="after")
    def _patches_fit(self) -> ImageClassificationSettings:
        model = self.model
        if (
            model.architecture is Architecture.VIT
            and model.source is ModelSource.SCRATCH
            and self.data.size % model.patch
        ):
            raise Misfit(
                "The patch (%(patch)d) must divide the picture size (%(size)d).",
                patch=model.patch,
                size=self.data.size,
            )
        return self
