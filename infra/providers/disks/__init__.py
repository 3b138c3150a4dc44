"""Disks in image files, and their mounts: the ``Disk`` and ``Attachment`` kinds.

``disk`` and ``attachment`` define the kinds with their providers. They share the folder and its
locks (``folder``), the image files and their marks (``images``), the attached and mounted disks
(``attachments``), a filesystem's metadata (``superblock``), and the kernel's state: loop devices
(``loops``), and mounts with their users (``mounts``). ``programs`` runs mkfs, mount and the like.
The pages are docs/kinds/disk.md and docs/kinds/attachment.md.
"""
