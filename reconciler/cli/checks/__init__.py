"""What `doctor` checks: each module one part of the system, each check a finding."""
