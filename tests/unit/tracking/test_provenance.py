from __future__ import annotations

import subprocess
from pathlib import Path

from diurnal.tracking.provenance import git_commit


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_of_the_code_says_whether_files_differ(tmp_path: Path) -> None:
    git(tmp_path, "init")
    (tmp_path / "code.py").write_text("x = 1")
    git(tmp_path, "add", "code.py")
    git(tmp_path, "commit", "-m", "one")
    git(tmp_path, "tag", "v1")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert git_commit(tmp_path) == commit
    (tmp_path / "code.py").write_text("x = 2")
    assert git_commit(tmp_path) == f"{commit}-dirty"
    installed = tmp_path / ".venv" / "site-packages"
    installed.mkdir(parents=True)
    assert git_commit(installed) is None


def test_code_outside_a_repository_has_no_commit(tmp_path: Path) -> None:
    assert git_commit(tmp_path) is None
