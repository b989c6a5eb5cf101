"""Programs of one's own on LightningCLI: Lightning's with our parts, or a subclass of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint, ProgressBar, TQDMProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from glt_lightning import GLTDataModule
from glt_lightning.base import OptionError
from glt_lightning.cli import GLTCLI
from tests.lightning.own_modules import SageByHand
from tests.lightning.tiny import CLASSES, WIDTH


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def args(graph_npz: Path) -> list[str]:
    trainer = {"accelerator": "cpu", "devices": 1, "fast_dev_run": 1, "enable_progress_bar": "false"}
    data = {"dataset": graph_npz, "root": "root", "num_neighbors": "[5,5]", "batch_size": 20}
    given = [f"--trainer.{name}={value}" for name, value in trainer.items()]
    return [*given, *(f"--data.{name}={value}" for name, value in data.items())]


@pytest.mark.parametrize(
    "strategy", ["auto", pytest.param("ddp", marks=pytest.mark.slow), "glt_worker", "glt_server_client"]
)
def test_lightnings_own_with_our_data_module(args: list[str], strategy: str) -> None:
    model = [f"--model.in_channels={WIDTH}", f"--model.out_channels={CLASSES}", f"--trainer.strategy={strategy}"]
    assert LightningCLI(SageByHand, GLTDataModule, args=["fit", *args, *model]).trainer.global_step == 1


def test_fixed_classes_get_the_facts_of_the_graph(args: list[str]) -> None:
    own = ["--trainer.strategy=glt_server_client", "--cluster.peer_timeout_s=7", "--model.hidden=8"]
    kwargs = {"fit": {"description": "Trains."}, "test": {"description": "Tests."}}
    cli = GLTCLI(SageByHand, GLTDataModule, args=["fit", *args, *own], parser_kwargs=kwargs)
    assert cli.trainer.global_step == 1
    assert list(cli._subcommand_parsers) == ["fit"]  # the others take their time for nothing
    assert cli.model.first.out_channels == 8
    assert cli.datamodule.cluster.peer_timeout_s == cli.trainer.strategy.options.peer_timeout_s == 7


def test_values_given_to_a_fixed_class_are_compared_with_the_graph(args: list[str], tmp_path: Path) -> None:
    Path("run.yaml").write_text(f"model: {{in_channels: {WIDTH}, out_channels: 50}}")
    with pytest.raises(OptionError, match=rf"model\.out_channels: got 50, and the data fills in {CLASSES}"):
        GLTCLI(SageByHand, GLTDataModule, run=False, args=["--config=run.yaml", *args])


class Program(GLTCLI):
    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        super().add_arguments_to_parser(parser)
        parser.add_argument("--width", default=4)
        parser.link_arguments("width", "model.init_args.hidden")

    def before_fit(self) -> None:
        self.told: Any = self.model.first.out_channels


def test_callbacks_of_the_program_take_the_place_of_ours(args: list[str]) -> None:

    class Checkpoints(GLTCLI):
        def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
            super().add_arguments_to_parser(parser)
            parser.add_lightning_class_args(ModelCheckpoint, "keep")

    shown = [each for each in args if "enable_progress_bar" not in each]
    defaults = {"callbacks": [TQDMProgressBar()]}
    cli = Checkpoints(SageByHand, GLTDataModule, trainer_defaults=defaults, args=["fit", *shown])
    kinds = [type(each) for each in cli.trainer.callbacks if isinstance(each, (Checkpoint, ProgressBar))]
    assert sorted(kind.__name__ for kind in kinds) == ["ModelCheckpoint", "TQDMProgressBar"]


def test_subclass_with_arguments_of_its_own(args: list[str]) -> None:
    chosen = ["--data=GLTDataModule", "--model=tests.lightning.own_modules.SageByHand", "--width=6"]
    modes = {"subclass_mode_model": True, "subclass_mode_data": True}
    cli = Program(LightningModule, LightningDataModule, **modes, args=["fit", *chosen, *args])
    assert cli.told == 6


def test_without_a_subcommand(args: list[str]) -> None:
    """``run=False`` only builds; the program goes on by itself."""
    cli = GLTCLI(SageByHand, GLTDataModule, run=False, args=args)
    cli.trainer.fit(cli.model, cli.datamodule)
    assert cli.trainer.global_step == 1


@pytest.mark.parametrize(("given", "kept"), [(None, False), (True, True)])
def test_predictions_are_written_and_not_also_kept(given: bool | None, kept: bool) -> None:
    cli = GLTCLI.__new__(GLTCLI)
    cli._subcommand_method_arguments = {"predict": ["return_predictions"]}
    cli.config_init, cli.model, cli.datamodule = {"predict": {"return_predictions": given}}, None, None
    assert cli._prepare_subcommand_kwargs("predict")["return_predictions"] is kept
