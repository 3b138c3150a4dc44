"""The shape resource: what clients send, what the service keeps, and the rules of both."""

from typing import Annotated, Final, Literal

import msgspec

from infra.shapes_api.problems import ProblemError

NAME_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z"  # `$` would let a newline pass

Name = Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]
ShapeType = Literal["Square", "Circle", "Triangle", "Hexagon"]
Color = Literal["Red", "Green", "Blue", "Purple", "Yellow", "Black", "White"]
LabelValue = Annotated[str, msgspec.Meta(max_length=255)]


class DesiredShape(msgspec.Struct, frozen=True, rename="camel"):
    """A shape as a client sends it.

    The last three are read-only: they may be sent, must be of the right type, and are ignored.
    """

    name: Name
    type: ShapeType
    color: Color
    labels: dict[str, LabelValue] = {}
    uid: str | msgspec.UnsetType = msgspec.UNSET
    version: int | msgspec.UnsetType = msgspec.UNSET
    created_at: str | msgspec.UnsetType = msgspec.UNSET


class Shape(msgspec.Struct, frozen=True, rename="camel"):
    """A shape as the service keeps and shows it."""

    name: str
    type: ShapeType
    color: Color
    labels: dict[str, str]
    uid: str
    version: int
    created_at: str


_desired_decoder: Final = msgspec.json.Decoder(DesiredShape)
_shape_decoder: Final = msgspec.json.Decoder(Shape)
_encoder: Final = msgspec.json.Encoder()


def read_desired_shape(body: bytes) -> DesiredShape:
    """Return the shape in a request's body.

    Raises:
        ProblemError: 400 when the body is not JSON, 422 when it is not a valid shape.
    """
    try:
        return _desired_decoder.decode(body)
    except msgspec.ValidationError as error:
        raise ProblemError(422, str(error), kind="not-valid") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProblemError(400, f"the body is not JSON: {error}", kind="malformed-json") from error


def encode_shape(shape: Shape) -> bytes:
    """Return a shape's JSON document."""
    return _encoder.encode(shape)


def decode_shape(document: bytes) -> Shape:
    """Return the shape of a JSON document that `encode_shape` made."""
    return _shape_decoder.decode(document)
