"""Pictures of any kind as upright RGB."""

from __future__ import annotations

import io
import stat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

ORIENTATION = 0x0112  # the EXIF tag that says how the camera was held

# Endings of files that are taken for pictures.
PICTURES = frozenset(
    [
        ".jpg",
        ".jpeg",
        ".jfif",
        ".png",
        ".webp",
        ".avif",
        ".bmp",
        ".gif",
        ".tif",
        ".tiff",
        ".ppm",
        ".pgm",
        ".pbm",
    ]
)


def to_rgb(image: Image.Image) -> Image.Image:
    """Any picture as upright 8-bit RGB; an RGB picture that is upright already is returned as it is.

    * Transparency (alpha channel, palette entry or key colour) is laid on white.
    * An EXIF orientation is applied.
    * Grey of 16 bits is divided by 257, so that 65535 becomes 255. Pillow mode I is read so too, as long as
      all values are in 0..65535.
    * Float values are taken as 0..1 if all are in that range, else as 0..255 if all are in that one.
    * Integers and floats outside those ranges have no agreed white: the picture's own smallest and largest
      value become 0 and 255.
    * Only the first frame of an animation is read. Colour profiles are not applied.

    Raises ValueError where a float picture has NaN or infinite values.

    >>> to_rgb(Image.new("I;16", (1, 1), 65535)).getpixel((0, 0))
    (255, 255, 255)
    >>> to_rgb(Image.new("RGBA", (1, 1), (255, 0, 0, 0))).getpixel((0, 0))
    (255, 255, 255)
    """
    image = _upright(image)
    if image.mode == "F" or image.mode.startswith("I"):
        return Image.fromarray(_eight_bits(np.asarray(image))).convert("RGB")
    if image.has_transparency_data:
        # Pillow turns premultiplied grey (La) into LA only.
        image = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _upright(image: Image.Image) -> Image.Image:
    try:
        turned = image.getexif().get(ORIENTATION, 1) != 1
    except Exception:
        # Damaged EXIF is common in web pictures and raises errors of many kinds; the pixels are sound.
        return image
    return ImageOps.exif_transpose(image) if turned else image


def _eight_bits(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Grey values `(h, w)` of more than 8 bits as uint8."""
    grey = values.astype(np.float64)
    if not np.isfinite(grey).all():
        raise ValueError("it has values that are NaN or infinite")
    low, high = grey.min(), grey.max()
    if values.dtype.kind == "f" and low >= 0 and high <= 1:
        grey = grey * 255
    elif values.dtype.kind == "f" and low >= 0 and high <= 255:
        pass
    elif values.dtype.kind != "f" and low >= 0 and high <= 65535:
        grey = grey / 257
    else:
        grey = (grey - low) / (high - low) * 255 if high > low else np.zeros_like(grey)
    return np.rint(grey).astype(np.uint8)


def read_picture(source: str | Path | bytes | memoryview, key: str | None = None) -> Image.Image:
    """The picture in a file or in encoded bytes, wholly decoded, as upright RGB (see `to_rgb`).

    key: what the message calls the picture; the path if not given.
    Raises ValueError, one line with the key and the reason, where there is no file, or it is empty, cut
    short, not a picture, or something else than a file, such as a folder or a pipe.

    >>> read_picture(b"<html>404</html>", key="cat.jpg")
    Traceback (most recent call last):
    ValueError: picture 'cat.jpg' cannot be read: it is no picture; it begins with b'<html>404</html>'
    """
    name = key if key is not None else str(source) if isinstance(source, (str, Path)) else "in memory"
    try:
        return _decode(source)
    except MemoryError:
        raise
    except Exception as error:
        # Pillow's readers raise errors of a dozen kinds on damaged input; all of them mean a bad picture.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"picture {name!r} cannot be read: {reason}") from error


def _bytes(path: Path) -> bytes:
    # Reading a named pipe would wait for a writer for ever, and a device may never end.
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("it is not a regular file")
    return path.read_bytes()


def _decode(source: str | Path | bytes | memoryview) -> Image.Image:
    try:
        data = _bytes(Path(source).expanduser()) if isinstance(source, (str, Path)) else source
    except FileNotFoundError:
        raise ValueError("there is no such file") from None
    if len(data) == 0:
        raise ValueError("it is empty (0 bytes)")
    # Pillow tries WebP after forty other formats, which costs half as much as decoding a 32 x 32 picture.
    formats = ["WEBP"] if bytes(data[8:12]) == b"WEBP" else None
    try:
        image = Image.open(io.BytesIO(data), formats=formats)
    except UnidentifiedImageError:
        raise ValueError(f"it is no picture; it begins with {bytes(data[:16])!r}") from None
    # Image.open reads the header only; damage further on shows here.
    image.load()
    return to_rgb(image)
