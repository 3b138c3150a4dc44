"""JetStream's own objects as kinds: ``Stream``, ``Consumer`` and ``Bucket``, one module each.

They share the connection and what its answers mean (``api``), the subjects that nobody may declare
(``subjects``), what the server tells of changes (``advisories``), and how streams are called
(``streams``): a bucket is a stream, too. The page is docs/kinds/jetstream.md.
"""
