"""Renderers: the operator's programs, run with limits in a copy of a commit."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.providers.git import rendering
from infra.providers.git.problems import GitError
from infra.providers.git.rendering import read_renderers, run_renderer
from reconciler.errors import ConfigurationError

FILES = {"base/a.yaml": b"from: base\n", "deploy/b.yaml": b"from: deploy\n"}


def sh(script: str) -> dict[str, list[str]]:
    return {"mine": ["sh", "-c", script]}


def test_a_renderer_runs_in_its_folder_with_all_other_files(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RECONCILER_TOKEN", "of the role")
    script = "cat b.yaml ../base/a.yaml; env"
    output = run_renderer(sh(script), "mine", FILES, "deploy")["mine"].decode()
    assert output.startswith("from: deploy\nfrom: base\n")
    assert "RECONCILER_TOKEN" not in output


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo no such chart >&2; exit 3", "mine: exit status 3: no such chart"),
        ("yes", "its output is larger than"),
        ("sleep 60 & sleep 60", "took longer than"),
        ("setsid sleep 3 & exit 3", "mine: exit status 3"),  # it keeps our output open
    ],
)
def test_a_failed_renderer_is_reported(script: str, message: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rendering, "MAX_SECONDS", 1 if "sleep" in script else 30)
    with pytest.raises(GitError, match=message) as raised:
        run_renderer(sh(script), "mine", FILES, "deploy")
    assert raised.value.reason == "BadCommit"


def test_only_the_operators_renderers_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(GitError, match="unknown renderer 'theirs'; use one of"):
        run_renderer(sh("true"), "theirs", FILES, "")
    with pytest.raises(GitError, match="is not a valid file name"):
        run_renderer(sh("true"), "mine", {"../../stolen": b""}, "")
    with pytest.raises(GitError, match="the commit has no directory 'nowhere'"):
        run_renderer(sh("true"), "mine", FILES, "nowhere")
    for outside in ("../..", "/etc", "deploy/../../.."):  # only a forged set could contain this
        with pytest.raises(GitError, match="the commit has no directory"):
            run_renderer(sh("true"), "mine", FILES, outside)
    assert read_renderers() == {}
    file = tmp_path / "renderers.yaml"
    monkeypatch.setenv("RECONCILER_RENDERERS", str(file))
    for text in (None, "mine: sh", "mine: []", "mine: [no-such-program]"):
        if text is not None:
            file.write_text(text)
        with pytest.raises(ConfigurationError, match="RECONCILER_RENDERERS"):
            read_renderers()
    file.write_text("mine: [sh, -c, 'cat *.yaml']")
    assert run_renderer(read_renderers(), "mine", FILES, "base") == {"mine": b"from: base\n"}
