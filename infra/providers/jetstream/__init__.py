"""JetStream's own objects as kinds: ``Stream``, ``Consumer`` and ``Bucket``, one module each.

They share the connection and the meaning of its responses (``api``), the reserved subjects
(``subjects``), the server's events (``advisories``), and the conversion of streams (``streams``),
because a bucket is a stream, too. The page is docs/kinds/jetstream.md.
"""
