"""`nsys recipe perfdoc`: perfdoc as one of Nsight's recipes.

Copied into an installation of Nsight Systems, and run by it: `nsys_recipe` is a package of that installation.
The base class brings the modes (`--mode none|concurrent|dask-futures`): reports are measured in the workers
of whichever is chosen, and one diagnosis is written at the end.
"""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any

from nsys_recipe import nsys_constants  # type: ignore[import-not-found]
from nsys_recipe.lib import exceptions, nsys_path, recipe  # type: ignore[import-not-found]
from nsys_recipe.lib.args import Option  # type: ignore[import-not-found]
from nsys_recipe.log import logger  # type: ignore[import-not-found]

from perfdoc.nsight import recipe_job as steps


class Perfdoc(recipe.Recipe):  # type: ignore[misc]
    """The recipe. nsys makes one with the parsed arguments and calls `run`."""

    recipe_name = "perfdoc"
    # By default it is read from beside this file, which is elsewhere where perfdoc is installed in the Python
    # that runs: `perfdoc` is then that package, and not the recipe's folder.
    metadata_dict = steps.METADATA

    def run(self, context: Any) -> None:
        """Measure every report in the context's workers, write the diagnosis and Nsight's analysis file."""
        super().run(context)
        # A worker may run in another folder.
        reports = [os.path.abspath(report) for report in self._parsed_args.input]  # noqa: PTH100
        job = {
            "installation": steps.installation(),
            "nsys": _own_nsys(),
            "options": _options(self._parsed_args),
            "reports": len(reports),
        }
        results = context.wait(context.map(steps.measure, reports, job=job))
        failed = [result for result in results if result["error"]]
        for result in failed:
            logger.error(result["error"])
        if failed:
            raise exceptions.ValueError(f"{len(failed)} of {len(reports)} reports could not be measured.")
        try:
            steps.reduce(results, self.get_output_dir(), job)
        except steps.JobError as error:
            raise exceptions.ValueError(str(error)) from error
        self._analysis_dict.update(
            {"EndTime": str(datetime.now()), "InputFiles": reports, "Outputs": self._output_files}
        )
        self.create_analysis_file()

    @classmethod
    def get_argument_parser(cls) -> Any:
        """Nsight's own options for input and output, and perfdoc's for the window."""
        parser = super().get_argument_parser()
        parser.add_recipe_argument(Option.INPUT, required=True)
        parser.add_recipe_argument(Option.OUTPUT)
        parser.add_recipe_argument(Option.FORCE_OVERWRITE)
        parser.add_recipe_argument(
            "--window",
            metavar="START,END",
            help="Analyse only this stretch, as perfdoc analyze --window: START,END on the capture's clock,\n"
            "range:REGEX, or capture",
        )
        parser.add_recipe_argument(
            "--step-range", metavar="REGEX", help="Names of the ranges that are training steps"
        )
        parser.add_recipe_argument(
            "--data-range", metavar="REGEX", help="Names of the ranges in which training waits for data"
        )
        parser.add_recipe_argument(
            "--comm-kernel",
            metavar="REGEX",
            help="Names of kernels that are communication, beside those known",
        )
        parser.add_recipe_argument(
            "--set", nargs="+", metavar="KEY=VALUE", help="Facts of the job, such as tp=8 pp=4 dtype=bf16"
        )
        parser.add_recipe_argument("--config", metavar="FILE", help="A YAML or JSON file with such facts")
        parser.add_recipe_argument(
            "--model-config", metavar="FILE", help="A Hugging Face config.json or Megatron-LM's arguments"
        )
        return parser


def _options(arguments: Any) -> list[str]:
    config = arguments.config and os.path.abspath(arguments.config)  # noqa: PTH100
    model = arguments.model_config and os.path.abspath(arguments.model_config)  # noqa: PTH100
    given = [("--window", arguments.window), ("--step-range", arguments.step_range)]
    given += [("--data-range", arguments.data_range), ("--comm-kernel", arguments.comm_kernel)]
    given += [("--config", config), ("--model-config", model)]
    given += [("--set", setting) for setting in arguments.set or ()]
    return [f"{option}={value}" for option, value in given if value is not None]


def _own_nsys() -> Any:
    """The nsys that this recipe belongs to; None where it cannot be told."""
    try:
        return nsys_path.find_installed_file(nsys_constants.NSYS_EXE_NAME)
    except exceptions.ValueError:
        return None
