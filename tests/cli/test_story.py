"""The story that the first page of help tells, on the real stack, and once more after a restart."""

from __future__ import annotations

from tests.cli.runner import Cli, Inside, shape, up


def test_from_up_to_down_and_up_again(cli: Cli) -> None:
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
        until_doctor_finds_nothing(cli)
        deleted_result = cli.ok("delete", "shape", "foo", "--wait")
        assert deleted_result.rows[0][:2] == ["default/Shape/foo", "Deleted"]
        assert first.stop() == (0, "")
    assert not (cli.folder / "reconciler-data" / "up.json").exists()

    with up(cli) as second:
        assert second.ready["natsUrl"] != ""
        inside = Inside(cli.folder)
        assert len(inside.ok("history", "foo", "-o", "json").json) == 8
        inside.ok("apply", "-f", "foo.yaml", "--wait")  # by the new address of the API
        config = inside.ok("get", "ProviderConfig", "default", "-o", "json").json
        assert config["metadata"]["generation"] == 2


def until_doctor_finds_nothing(cli: Cli) -> None:
    """Ask until all is well, as long as the test may take: a busy machine has its moments."""
    while wrong := [
        one for one in cli.ok("doctor", "--full", "-o", "json").json if one["status"] != "ok"
    ]:
        print(wrong)
