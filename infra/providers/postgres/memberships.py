"""Memberships of a role: which ones to show, and the statements that change them.

Since PostgreSQL 16, a grant has a grantor, and the options ADMIN, INHERIT and SET. A role with
CREATEROLE receives each role that it creates back from the server, with ADMIN only. Without that
grant, it can no longer change what it created, so such a grant is neither shown nor revoked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from psycopg import sql

from events.manifest import Fields

_OPTIONS_SINCE: Final = 160_000
_FIRST_USER_OID: Final = 16_384
_BOOTSTRAP_SUPERUSER: Final = 10

GRANTS: Final = sql.SQL(
    """
    SELECT coalesce(jsonb_agg(to_jsonb(g) ORDER BY g.parent, g.grantor), '[]') AS grants
    FROM (
        SELECT p.rolname AS parent, coalesce(o.rolname, '') AS grantor,
            i.is_administered AND coalesce(m.inherit OR m.set, false) AS is_administered,
            CASE
                WHEN u.rolsuper AND m.set IS NULL THEN ''
                WHEN m.set IS NULL THEN CASE
                    WHEN p.rolsuper
                        OR NOT (u.rolcreaterole
                            OR pg_has_role(p.oid, 'MEMBER WITH ADMIN OPTION'))
                    THEN 'only a superuser may revoke it' ELSE '' END
                WHEN NOT pg_has_role(m.grantor, 'USAGE')
                    THEN 'granted by ' || quote_ident(o.rolname)
                WHEN m.admin_option AND EXISTS (
                    SELECT FROM pg_auth_members d WHERE d.roleid = m.roleid AND d.grantor = m.member
                ) THEN 'the role has granted it to others'
                ELSE ''
            END AS obstacle
        FROM (
            SELECT n.*, (to_jsonb(n)->>'inherit_option')::boolean AS inherit,
                (to_jsonb(n)->>'set_option')::boolean AS set
            FROM pg_auth_members n WHERE n.member = a.oid
        ) m
            JOIN pg_roles p ON p.oid = m.roleid
            JOIN pg_roles u ON u.rolname = current_user
            LEFT JOIN pg_roles o ON o.oid = m.grantor
            CROSS JOIN LATERAL (
                SELECT m.grantor = {superuser}::oid AND m.admin_option AND m.set IS NOT NULL
                    AND NOT p.rolsuper AND p.oid >= {first}::oid AS is_administered
            ) i
        WHERE (i.is_administered AND NOT m.inherit AND NOT m.set) IS NOT TRUE
            AND NOT (m.set IS NOT NULL AND m.grantor = m.member AND EXISTS (
                SELECT FROM pg_auth_members s WHERE (s.roleid, s.member) = (m.roleid, m.member)
                    AND s.grantor = {superuser}::oid AND s.admin_option
                    AND NOT p.rolsuper AND p.oid >= {first}::oid
            ))
    ) g
    """
).format(superuser=_BOOTSTRAP_SUPERUSER, first=_FIRST_USER_OID)
"""The grants of role ``a`` to show. Older servers have no ``inherit_option`` and ``set_option``.

Excluded are the server's grants to the creator of a role, and what the creator then grants to
itself, as ``createrole_self_grant`` does. A superuser or a predefined role has no such creator.
"""


class GrantRow(msgspec.Struct, frozen=True):
    """A grant of membership in ``parent``.

    ``obstacle``: why it cannot be revoked; empty if it can. ``is_administered``: the grant also has
    the ADMIN option that the server gives to the creator of the parent.
    """

    parent: str
    grantor: str
    is_administered: bool | None
    obstacle: str


def parents_of(grants: Sequence[GrantRow]) -> list[str]:
    """Return the roles that the grants make their member a member of."""
    return sorted({each.parent for each in grants})


def describe_obstacles(grants: Sequence[GrantRow]) -> dict[str, str]:
    """Return why each membership cannot be revoked; empty if all can."""
    obstacles: dict[str, list[str]] = {}
    for each in grants:
        if each.obstacle:
            obstacles.setdefault(each.parent, []).append(each.obstacle)
    return {parent: ", ".join(reasons) for parent, reasons in obstacles.items()}


def membership_statements(
    role: str, fields: Fields, grants: Sequence[GrantRow], server_version: int
) -> list[sql.Composed]:
    """Return the statements that establish the declared memberships, as far as possible."""
    member, desired = sql.Identifier(role), fields["memberOf"]
    current, statements = parents_of(grants), list[sql.Composed]()
    for each in grants:
        if each.parent in desired or each.obstacle:
            continue
        target = sql.SQL("{} FROM {}").format(sql.Identifier(each.parent), member)
        if server_version >= _OPTIONS_SINCE:
            target += sql.SQL(" GRANTED BY {}").format(sql.Identifier(each.grantor))
        if each.is_administered and fields["createRole"]:
            # The role may have created the parent, and must still be able to change it.
            statements.append(sql.SQL("REVOKE INHERIT OPTION FOR {}").format(target))
            statements.append(sql.SQL("REVOKE SET OPTION FOR {}").format(target))
        else:
            statements.append(sql.SQL("REVOKE {}").format(target))
    for parent in sorted(set(desired) - set(current)):
        granted = sql.SQL("GRANT {} TO {}").format(sql.Identifier(parent), member)
        if server_version >= _OPTIONS_SINCE:
            # A grant with only ADMIN may exist, whose options a plain GRANT would keep.
            options = sql.SQL(" WITH INHERIT {}, SET TRUE")
            granted += options.format(sql.SQL("TRUE" if fields["inherit"] else "FALSE"))
        statements.append(granted)
    return statements
