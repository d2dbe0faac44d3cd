"""Downstream tasks through EleutherAI's lm-eval, which is imported only when asked for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any

from residual_lab.data.tokenizer import TokenizerFile
from residual_lab.errors import LabError, suggestion
from residual_lab.evaluation.trained import Trained


@dataclass(frozen=True)
class Score:
    """One number of one task; ``metric`` with the filter of the answers where there is one."""

    task: str
    metric: str
    value: float
    standard_error: float | None


class Harness:
    """The tasks ``names``, checked and their documents fetched, before any model is run.

    Names are lm-eval's tasks, groups or tags, or YAML files of tasks. Raises LabError where
    lm-eval is not installed, for unknown names, and for documents that cannot be had.
    """

    def __init__(self, names: Sequence[str], limit: int | None = None) -> None:
        try:
            import lm_eval  # noqa: F401
        except ImportError:
            raise LabError(
                f"tasks={','.join(names)}: needs lm-eval, which is not installed: "
                "pip install 'residual-lab[evaluation]'"
            ) from None
        self.names, self.limit = names, limit
        self._manager = _task_manager()
        self._descriptions: dict[str, None] = {}
        for name in names:
            self._fetch(name)

    def _fetch(self, name: str) -> None:
        known = self._manager.task_index
        if name not in known and not name.endswith((".yaml", ".yml")):
            near = suggestion(name, known)
            raise LabError(
                f"tasks={name}: lm-eval has no such task{near} (`lm-eval ls tasks` shows all)"
            )
        try:
            self._manager.load([name])
        except Exception as error:  # whatever the libraries that fetch documents raise
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise LabError(
                f"tasks={name}: its documents cannot be loaded ({reason[:200]}); check the name, "
                "the connection, HF_ENDPOINT and HF_HUB_OFFLINE"
            ) from None

    def scores(self, trained: Trained, own: TokenizerFile) -> list[Score]:
        """All numbers of the run; of a group that has a score of its own that one alone."""
        from lm_eval import simple_evaluate

        from residual_lab.evaluation.harness_model import HarnessModel

        model, found = HarnessModel(trained, own), []
        for name in self.names:
            results = simple_evaluate(
                model,
                tasks=[name],
                limit=self.limit,
                task_manager=self._manager,
                log_samples=False,
            )
            self._describe(results)
            by_task = {task: list(_scores(task, row)) for task, row in results["results"].items()}
            whole = by_task.get(name)
            found += whole or [score for scores in by_task.values() for score in scores]
        return found

    def _describe(self, results: dict[str, Any]) -> None:
        for task, shots in results["n-shot"].items():
            count = results["n-samples"].get(task, {}).get("effective")
            if count is not None:
                self._descriptions[
                    f"{task}: version {results['versions'].get(task)}, {shots}-shot, "
                    f"{count:,} documents"
                ] = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What was run, for below the table."""
        return (f"Tasks by lm-eval {version('lm-eval')}; ± standard error.", *self._descriptions)


@cache
def _task_manager() -> Any:
    """Once: it reads thousands of files."""
    from lm_eval.tasks import TaskManager

    return TaskManager()


def _scores(task: str, row: dict[str, Any]) -> Iterator[Score]:
    """lm-eval's keys are ``metric,filter`` and ``metric_stderr,filter``."""
    for key, value in row.items():
        metric, comma, chosen = key.partition(",")
        if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
            continue
        error = row.get(f"{metric}_stderr,{chosen}")
        yield Score(
            task,
            metric if chosen == "none" else f"{metric} ({chosen})",
            value,
            error if isinstance(error, int | float) else None,
        )
