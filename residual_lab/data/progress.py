"""How far a preparation is, on a terminal; nothing anywhere else."""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


class TokenProgress:
    """A bar for each split with its number of tokens; shown only where stderr is a terminal."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self.bar = Progress(
            TextColumn("tokenising {task.description}"),
            BarColumn(),
            TextColumn("{task.fields[millions]:.1f} M tokens"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )

    def __enter__(self) -> "TokenProgress":
        self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.bar.stop()

    def start(self, split: str, tokens: int, total: int | None) -> None:
        """Go on to the next split; ``total`` None: its size is not known beforehand."""
        self.task = self.bar.add_task(split, total=total, millions=0.0)
        self.update(tokens)

    def update(self, tokens: int) -> None:
        self.bar.update(self.task, completed=tokens, millions=tokens / 1e6)
