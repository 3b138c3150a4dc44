"""A shape's version as its entity tag, and the `If-Match` precondition (RFC 9110, 13.1.1)."""

from infra.shapes_api.problems import ProblemError


def entity_tag(version: int) -> str:
    """Return the strong entity tag of a version."""
    return f'"{version}"'


def require_match(if_match: str | None, version: int) -> None:
    """Accept the version if there is no precondition, or if it holds.

    Raises:
        ProblemError: 412, the shape has another version.
    """
    if if_match is None:
        return
    wanted = [tag.strip() for tag in if_match.split(",")]
    if "*" not in wanted and entity_tag(version) not in wanted:
        raise ProblemError(
            412,
            f"If-Match is {if_match} but the shape's ETag is {entity_tag(version)}: read it again",
            kind="version-mismatch",
        )
