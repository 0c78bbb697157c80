"""transformers' ViLT for questions: opened by name or folder, and kept beside a run's weights."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import nn

from glocal.data.images import few
from glocal.data.settings import DataSettings
from glocal.data.sight import Sight
from glocal.errors import GlocalError, nearest
from glocal.recipes.build import line
from glocal.train.settings import HostSettings

KEPT = "host"  # the folder of a run that holds the host's settings and words


@dataclass(frozen=True)
class Words:
    """Turns questions into numbers; what is too long for the host is cut off."""

    tokenizer: Any
    longest: int

    def __call__(self, question: str) -> list[int]:
        return self.tokenizer(question, truncation=True, max_length=self.longest)["input_ids"]


@dataclass(frozen=True)
class Opened:
    """A host's settings and words, without weights."""

    settings: HostSettings
    config: Any
    words: Words

    def sight(self, data: DataSettings) -> Sight:
        """Tell how images are brought to its size."""
        size, patch = data.size or self.config.image_size, self.config.patch_size
        return Sight(size, patch, data.vqa.longest if data.vqa else None)


def open_host(settings: HostSettings) -> Opened:
    """Open what a folder or a name on the hub says of a host; raises where it is no ViLT."""
    hf = _transformers()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # worker processes read the questions, one by one
    with _quiet(hf):
        config = _asked(settings.name, "config.json", hf.AutoConfig.from_pretrained, settings.name)
        if config.model_type != "vilt":
            raise GlocalError(
                f"{settings.name} is a {config.model_type}; task answer takes a ViLT, such as dandelin/vilt-b32-mlm."
            )
        tokenizer = _asked(settings.name, "the tokenizer", hf.AutoTokenizer.from_pretrained, settings.name)
    _apply(config, settings)
    if len(tokenizer) > config.vocab_size:
        raise GlocalError(
            f"the tokenizer of {settings.name} knows {len(tokenizer)} words, its model {config.vocab_size}. "
            f"Do the files of the folder belong together?"
        )
    return Opened(settings, config, Words(tokenizer, config.max_position_embeddings))


def build_host(opened: Opened, classes: tuple[str, ...]) -> nn.Module:
    """Make the model for these answers, with its weights where the settings ask for them."""
    hf, config = _transformers(), opened.config
    config.id2label = dict(enumerate(classes))
    config.label2id = {answer: i for i, answer in config.id2label.items()}
    if not opened.settings.pretrained:
        return hf.ViltForQuestionAnswering(config)
    name = opened.settings.name
    with _quiet(hf):  # it would tell that the answers' weights are new, which they always are
        load = hf.ViltForQuestionAnswering.from_pretrained
        options = {"config": config, "ignore_mismatched_sizes": True, "output_loading_info": True}
        model, found = _asked(name, "the weights", load, name, **options)
    _check_trunk(name, found)
    return model


def _check_trunk(name: str, found: dict[str, Any]) -> None:
    """Raise where more than the answers' own layers begins anew: from_pretrained fills gaps without a word."""
    misfits = [str(each[0]) for each in found["mismatched_keys"]]
    new = sorted(key for key in {*found["missing_keys"], *misfits} if key.startswith("vilt.") and "pooler" not in key)
    if new:
        raise GlocalError(
            f"{len(new)} tensors of the host are not among the weights of {name}, or have another shape there: "
            f"{few(new, 3)}. Leave out what changes its shape, such as host.image_size; data.size does not."
        )


def keep_host(opened: Opened, folder: Path) -> None:
    """Write settings and words into a run folder, which then needs neither hub nor the folder they came from."""
    opened.config.save_pretrained(folder / KEPT)
    opened.words.tokenizer.save_pretrained(folder / KEPT)


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise GlocalError("task answer needs an extra: pip install 'glocal[transformers]'.") from None
    return cast("Any", transformers)


@contextmanager
def _quiet(hf: Any) -> Iterator[None]:
    logging = hf.utils.logging
    before, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bar:
            logging.enable_progress_bar()


def _asked(name: str, what: str, load: Any, *arguments: Any, **options: Any) -> Any:
    try:
        return load(*arguments, **options)
    except Exception as error:  # each kind of file has its own
        raise GlocalError(
            f"{what} of {name} cannot be had: {line(error)}. host.name is a folder that transformers wrote, "
            f"or a name on its hub, such as dandelin/vilt-b32-mlm."
        ) from error


def _apply(config: Any, settings: HostSettings) -> None:
    for key, value in settings.arguments.items():
        if not hasattr(config, key):
            near = nearest(key, list(config.to_dict()))
            raise GlocalError(f"host.{key} is no setting of {settings.name}.{near}")
        try:
            setattr(config, key, value)
        except Exception as error:
            raise GlocalError(f"host.{key} is {value!r}: {line(error)}.") from error
    for key in ("image_size", "patch_size"):
        if not isinstance(getattr(config, key), int):
            raise GlocalError(f"host.{key} is {getattr(config, key)}; ViLT takes one number for both sides.")
