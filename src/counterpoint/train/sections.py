"""The sections of a recipe whose keys are the same whatever is named in them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from counterpoint.arguments import choose, refuse_truth
from counterpoint.evaluate.trained_linear import PROTOCOLS
from counterpoint.evaluate.zero_shot import templates


class Section(BaseModel):
    """A part of a recipe: unknown keys are refused, values cannot be changed afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _numbers(cls, given: Any) -> Any:
        refuse_truth(cls.model_fields, given)
        return given


class Text(Section):
    """The text tower, whose embeddings of the captions are one more view."""

    backbone: str = Field(
        "transformer",
        description="transformer (from scratch), minilm, a sentence-transformers name, open_clip:NAME",
    )
    head: tuple[int, ...] | None = Field(
        None, max_length=3, description="output widths; one layer to the pictures' width if not given"
    )
    width: int = Field(512, ge=1, le=4096, description="of the transformer")
    layers: int = Field(12, ge=1, le=64, description="of the transformer")
    heads: int = Field(8, ge=1, le=64, description="of the transformer")
    pooling: Literal["eot", "mean"] = Field(
        "eot", description="of the transformer: the end mark under a causal mask, as CLIP, or the mean"
    )
    max_length: int = Field(77, ge=3, le=4096, description="tokens of a caption at most")
    tokenizer: str = Field(
        "wordpiece", description="of the transformer: wordpiece (offline), clip, or a tokenizer.json"
    )
    weights: str | None = Field(None, description="of open_clip:NAME, a file or a tag")
    trained: bool = Field(True, description="false leaves the backbone as it is and trains its head only")


class Model(Section):
    """The encoder: a backbone whose features are used, and a head that only training sees."""

    backbone: str = Field(
        "conv4", description="ours (conv4, resnet8..56), efficientnet_lite0, a torchvision name, timm:name"
    )
    stem: Literal["default", "small"] = Field(
        "default", description="small: 3x3 stride 1, no pool, for small pictures"
    )
    width: int = Field(1, ge=1, le=1024, description="multiplies the channels of our small backbones")
    head: tuple[int, ...] = Field((256, 128), max_length=3, description="output widths of the head's layers")
    head_norm: bool = Field(True, description="BatchNorm between the layers of the head")
    head_final_norm: bool = Field(False, description="BatchNorm after the last layer of the head")
    head_activation: Literal["relu", "leaky_relu"] = Field(
        "relu", description="between the layers of the head; QARe has leaky_relu"
    )
    extra_linear: bool = Field(
        False, description="a linear layer after the pooling of our ResNets, as QARe has it"
    )
    weights: str | None = Field(
        None, description="what to start from: a checkpoint, the folder of a run, or 'pretrained'"
    )
    text: Text | None = Field(None, description="a text tower beside it: the caption is then the last view")


class Momentum(Section):
    """A momentum encoder, through which all views but the first go, and a queue of its embeddings."""

    rate: float = Field(
        0.99, ge=0, le=1, description="how much of itself the momentum encoder keeps at a step; 0: all new"
    )
    schedule: Literal["constant", "cosine"] = Field(
        "constant", description="cosine: the rate goes up to 1 at the end of the run"
    )
    queue: int | None = Field(
        None, ge=1, le=2**24, description="embeddings of past batches that are candidates too"
    )


class Optim(Section):
    """The optimiser and its rate."""

    name: Literal["adam", "adamw", "sgd", "lars"] = Field("adamw", description="the optimiser")
    lr: float = Field(1e-3, gt=0, allow_inf_nan=False, description="peak learning rate before scaling")
    lr_scaling: Literal["none", "sqrt", "linear"] = Field(
        "none", description="how the rate grows with the batch"
    )
    weight_decay: float = Field(1e-6, ge=0, description="not applied to BatchNorm and biases")
    momentum: float = Field(0.9, ge=0, lt=1, description="of sgd and lars")
    warmup_epochs: float = Field(0.0, ge=0, allow_inf_nan=False, description="epochs of linear warm-up")
    schedule: Literal["cosine", "linear", "constant"] = Field("cosine", description="the rate after warm-up")
    clip: float | None = Field(None, gt=0, description="largest gradient norm")
    layer_decay: float | None = Field(
        None, gt=0, le=1, description="for fine-tuning: factor on the rate from each block to the one before"
    )
    head_lr: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="peak rate of the head before scaling; lr if not given"
    )


class Train(Section):
    """The loop."""

    epochs: int = Field(
        20, ge=0, description="passes over the train split; 0 measures the encoder at its start"
    )
    steps: int | None = Field(None, ge=1, description="stop after so many steps in all")
    batch_size: int = Field(256, ge=2, description="samples per step, over all processes")
    workers: int = Field(2, ge=0, description="processes that decode and augment larger pictures")
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = Field("auto", description="where the encoder runs")
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = Field(
        "32-true", description="arithmetic of the encoder"
    )
    devices: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        1, description="processes of this machine, one for each GPU or share of the CPU; auto: all GPUs"
    )
    nodes: int = Field(1, ge=1, description="machines, each with as many devices")
    strategy: Literal["auto", "fsdp"] = Field(
        "auto", description="fsdp: the encoder is split over the GPUs, not copied to each (not tried on any)"
    )
    sync_batchnorm: bool = Field(False, description="BatchNorm over all processes; GPUs only")
    micro_batch: int | None = Field(
        None, ge=1, description="samples encoded at a time, by the gradient cache; all at once if not given"
    )
    compile: bool = Field(False, description="torch.compile the encoder")
    log_every: int = Field(20, ge=1, description="steps between rows of the log")
    save_every: int = Field(
        500, ge=1, description="steps between checkpoints; one is always written at the end"
    )
    keep: int = Field(2, ge=1, description="checkpoints kept")
    on_nan: Literal["stop", "skip"] = Field(
        "stop", description="what a loss that is not finite does: end the run, or leave its step out"
    )
    tensorboard: bool = Field(False, description="write TensorBoard events too (extra: track)")

    @model_validator(mode="after")
    def _fits(self) -> Train:
        if self.sync_batchnorm and self.micro_batch is not None:
            raise ValueError(
                "train.sync_batchnorm=true and train.micro_batch exclude each other: BatchNorm would see "
                "parts of the batch, not the whole of it"
            )
        if self.strategy == "fsdp" and self.compile:
            raise ValueError("train.strategy='fsdp' and train.compile=true exclude each other")
        return self


class ZeroShot(Section):
    """Class accuracy by the embedded names of the classes; for a model with a text tower."""

    columns: tuple[str, ...] | None = Field(None, description="label columns; the first one if not given")
    templates: str | tuple[str, ...] = Field(
        "photo", description="photo, clip7, imagenet80, or sentences with {} for the name"
    )
    names: Literal["data", "imagenet"] = Field(
        "data", description="of the classes: the data's own, or CLIP's for ImageNet"
    )
    k: tuple[Annotated[int, Field(ge=1)], ...] = Field((1, 5), min_length=1, description="top-k")

    @model_validator(mode="after")
    def _check(self) -> ZeroShot:
        templates(self.templates)
        return self


class Evaluate(Section):
    """What is measured on the frozen features."""

    columns: tuple[str, ...] | None = Field(
        None, description="label columns; the first one if not given, none at all for []"
    )
    k: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (1, 5, 20, 200), min_length=1, description="numbers of neighbours"
    )
    temperature: float = Field(0.07, gt=0, allow_inf_nan=False, description="of the neighbours' votes")
    linear: bool = Field(True, description="solve a linear probe too")
    probes: tuple[str, ...] = Field(
        (), description="linear probes trained as papers do: " + ", ".join(PROTOCOLS)
    )
    matching: str | None = Field(
        None,
        description="label column of cameras: match identities from the first half of them to the others",
    )
    zero_shot: ZeroShot | None = Field(None, description="accuracy by embedded class names (model.text)")
    retrieval: bool = Field(
        False, description="find captions by picture and pictures by caption (model.text)"
    )
    batch_size: int = Field(512, ge=1, le=10**6, description="pictures per step")

    @model_validator(mode="after")
    def _check(self) -> Evaluate:
        for name in self.probes:
            choose("linear protocol", name, PROTOCOLS)
        if len(set(self.probes)) < len(self.probes):
            raise ValueError(f"evaluate.probes names a protocol twice: {', '.join(self.probes)}")
        return self
