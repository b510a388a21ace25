"""Small encoded pictures for tests, and the shape that every message of a reader must have."""

import io
import re
from contextlib import contextmanager

import pytest
from PIL import Image


def encoded(colour="red", size=(4, 4), format="png", **options) -> bytes:
    """One colour, encoded; the default is lossless."""
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, format, **options)
    return file.getvalue()


def colour_at(picture, x=0, y=0):
    assert picture.mode == "RGB"
    return picture.getpixel((x, y))


@contextmanager
def refused(*parts: str):
    """A ValueError of one line that has all these parts."""
    with pytest.raises(ValueError, match=re.escape(parts[0])) as caught:
        yield
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, f"{part!r} is not in {message!r}"
