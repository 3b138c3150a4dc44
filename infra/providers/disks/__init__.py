"""Disks in image files, and where they are mounted: the kinds ``Disk`` and ``Attachment``.

``disk`` and ``attachment`` are the kinds with their providers. They share the folder and its locks
(``folder``), the image files with what is marked on them (``images``), what is attached and mounted
(``attachments``), what a filesystem says of itself (``superblock``), and what the kernel says: loop
devices (``loops``), mounts and who uses them (``mounts``). ``programs`` runs what makes, checks,
grows and mounts. The pages are docs/kinds/disk.md and docs/kinds/attachment.md.
"""
