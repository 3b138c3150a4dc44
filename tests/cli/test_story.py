"""The workflow from the help overview on a real stack, and again after a restart."""

from __future__ import annotations

from tests.cli.runner import Cli, InProcessCli, shape, up


def test_the_workflow_continues_after_a_restart_of_up(cli: Cli) -> None:
    cli.write("foo.yaml", shape("foo"))
    with up(cli) as first:
        assert first.ready["ready"] is True
        assert first.ready["readySeconds"] > 0
        assert cli.ok("apply", "-f", "foo.yaml", "--wait", "-o", "json").json == [
            {
                "resource": "default/Shape/foo",
                "accepted": True,
                "reason": "AsDeclared",
                "generation": 1,
                "outcome": "Converged",
            }
        ]
        assert [row[:3] for row in cli.ok("get").rows] == [["Shape", "foo", "Converged"]]
        history = [line["event"] for line in cli.ok("history", "foo", "-o", "json").json]
        assert history == ["SpecDeclared", "ActionDecided", "ActionSucceeded", "OutcomeRecorded"]
        verified = cli.ok("replay", "--verify", "-o", "json").json
        assert verified["events"] >= 6
        assert verified["verified"]["differences"] == []
        wait_until_doctor_passes(cli)
        deleted_result = cli.ok("delete", "shape", "foo", "--wait")
        assert deleted_result.rows[0][:2] == ["default/Shape/foo", "Deleted"]
        assert first.stop() == (0, "")
    assert not (cli.folder / "reconciler-data" / "up.json").exists()

    with up(cli) as second:
        assert second.ready["natsUrl"] != ""
        local_cli = InProcessCli(cli.folder)
        assert len(local_cli.ok("history", "foo", "-o", "json").json) == 8
        local_cli.ok("apply", "-f", "foo.yaml", "--wait")  # with the API's new address
        config = local_cli.ok("get", "ProviderConfig", "default", "-o", "json").json
        assert config["metadata"]["generation"] == 2


def wait_until_doctor_passes(cli: Cli) -> None:
    """Repeat `doctor` until all checks pass, because roles may be slow on a busy machine."""
    while problems := [
        check for check in cli.ok("doctor", "--full", "-o", "json").json if check["status"] != "ok"
    ]:
        print(problems)
