"""What finished runs can do: text, losses on any corpus, downstream tasks."""
