"""Disks in image files, and where they are mounted: the kinds ``Disk`` and ``Attachment``.

``disk`` and ``attachment`` are the kinds with their providers. They share the folder and its locks
(``folder``), the image files and their marks (``images``), the attached and mounted disks
(``attachments``), the data of a filesystem (``superblock``), and those of the kernel: loop devices
(``loops``), mounts and their users (``mounts``). ``programs`` runs the programs that make, check,
grow and mount. The pages are docs/kinds/disk.md and docs/kinds/attachment.md.
"""
