"""Git as a source: repositories whose commits say what is to be declared (ADR 0053)."""
