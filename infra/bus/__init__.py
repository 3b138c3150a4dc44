"""The JetStream streams, and the implementations of ``reconciler.ports``."""
