"""JetStream's own objects as kinds: ``Stream``, ``Consumer`` and ``Bucket``, one module each.

They share the connection and the classification of responses (``api``), the reserved subjects
(``subjects``), the server's events (``advisories``), and the conversion of streams (``streams``),
because a bucket is also a stream. The page is docs/kinds/jetstream.md.
"""
