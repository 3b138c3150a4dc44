"""The streams on JetStream, and the implementations of ``reconciler.ports``."""
