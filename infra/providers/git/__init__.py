"""Git as a source: repositories whose commits contain the manifests to declare (ADR 0053)."""
