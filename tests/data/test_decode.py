"""Every mode of picture comes out as upright RGB, and every kind of bad file is named."""

import io
import os

import numpy as np
import pytest
from pictures import colour_at, encoded, refused
from PIL import Image, ImageDraw

from counterpoint.data.decode import PICTURES, read_picture, to_rgb


def through(image: Image.Image, format: str, **options) -> Image.Image:
    """The picture after it has been a file."""
    file = io.BytesIO()
    image.save(file, format, **options)
    return read_picture(file.getvalue(), "through")


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [
        ("RGB", (10, 20, 30), (10, 20, 30)),
        ("L", 77, (77, 77, 77)),
        ("1", 1, (255, 255, 255)),
        ("1", 0, (0, 0, 0)),
        ("LA", (40, 255), (40, 40, 40)),
        ("LA", (40, 0), (255, 255, 255)),
        ("La", (0, 0), (255, 255, 255)),
        ("RGBA", (10, 20, 30, 255), (10, 20, 30)),
        ("RGBA", (10, 20, 30, 0), (255, 255, 255)),
        ("RGBA", (0, 100, 200, 51), (204, 224, 244)),  # 255 - 51 / 255 * (255 - c)
        ("RGBa", (0, 0, 0, 0), (255, 255, 255)),
        ("RGBX", (10, 20, 30, 0), (10, 20, 30)),
        ("PA", (0, 0), (255, 255, 255)),
        ("CMYK", (0, 255, 255, 0), (255, 0, 0)),
        ("YCbCr", (255, 128, 128), (255, 255, 255)),
        ("HSV", (85, 255, 255), (0, 255, 0)),
        ("I;16", 65535, (255, 255, 255)),
        ("I;16", 300, (1, 1, 1)),
        ("I;16B", 32896, (128, 128, 128)),
        ("I", 32896, (128, 128, 128)),
        ("F", 0.5, (128, 128, 128)),
        ("F", 200.4, (200, 200, 200)),
    ],
)
def test_modes(mode, colour, expected):
    shown = to_rgb(Image.new(mode, (3, 2), colour))
    assert shown.size == (3, 2)
    assert colour_at(shown) == expected


def test_upright_rgb_is_not_copied():
    image = Image.new("RGB", (2, 2))
    assert to_rgb(image) is image


@pytest.mark.parametrize(("format", "dtype"), [("png", np.uint16), ("tiff", np.uint16), ("tiff", ">u2")])
def test_sixteen_bit_files_are_scaled_not_clipped(format, dtype):
    ramp = np.array([[0, 257, 255, 32896, 65535]], dtype=dtype)
    grey = np.asarray(through(Image.fromarray(ramp), format))[0, :, 0]
    assert grey.tolist() == [0, 1, 1, 128, 255]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[-10, 0, 10]], np.int32), [0, 128, 255]),
        (np.array([[0, 100_000, 200_000]], np.int32), [0, 128, 255]),
        (np.array([[0.0, 0.25, 1.0]], np.float32), [0, 64, 255]),
        (np.array([[0.0, 2.0, 255.0]], np.float32), [0, 2, 255]),
        (np.array([[-1.0, 0.0, 1.0]], np.float32), [0, 128, 255]),
        (np.array([[300.0, 400.0, 500.0]], np.float32), [0, 128, 255]),
        (np.array([[-7.0, -7.0, -7.0]], np.float32), [0, 0, 0]),
    ],
)
def test_wide_values_in_tiff(values, expected):
    assert np.asarray(through(Image.fromarray(values), "tiff"))[0, :, 0].tolist() == expected


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_float_that_is_not_finite_is_refused(value):
    file = io.BytesIO()
    Image.fromarray(np.array([[0.0, value]], np.float32)).save(file, "tiff")
    with refused("'depth.tif'", "NaN or infinite"):
        read_picture(file.getvalue(), "depth.tif")


def palette() -> Image.Image:
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putpixel((1, 0), 1)
    return image


def test_palette():
    shown = through(palette(), "png")
    assert (colour_at(shown, 0), colour_at(shown, 1)) == ((255, 0, 0), (0, 0, 255))


@pytest.mark.parametrize(("format", "transparency"), [("gif", 1), ("png", 1), ("png", bytes([255, 0]))])
def test_palette_with_transparency_is_laid_on_white(format, transparency):
    shown = through(palette(), format, transparency=transparency)
    assert (colour_at(shown, 0), colour_at(shown, 1)) == ((255, 0, 0), (255, 255, 255))


@pytest.mark.parametrize(
    ("mode", "colour", "key"), [("RGB", (9, 8, 7), (9, 8, 7)), ("L", 60, 60), ("1", 0, 0)]
)
def test_png_key_colour_is_laid_on_white(mode, colour, key):
    assert colour_at(through(Image.new(mode, (1, 1), colour), "png", transparency=key)) == (255, 255, 255)


def test_sixteen_bit_png_with_key_colour_is_read():
    assert colour_at(through(Image.new("I;16", (1, 1), 65535), "png", transparency=0)) == (255, 255, 255)


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_jpeg_modes(mode):
    shown = through(Image.new("RGB", (8, 8), (200, 200, 200)).convert(mode), "jpeg", quality=100)
    assert np.abs(np.asarray(shown).astype(int) - 200).max() <= 2


def test_first_frame_of_an_animation():
    file = io.BytesIO()
    Image.new("RGB", (2, 2), "red").save(
        file, "gif", save_all=True, append_images=[Image.new("RGB", (2, 2), "blue")]
    )
    assert colour_at(read_picture(file.getvalue(), "a.gif")) == (255, 0, 0)


# What has to be done to the stored pixels, by the EXIF standard.
UPRIGHT = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a, 2).transpose(1, 0, 2),
    8: lambda a: np.rot90(a, 1),
}


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("format", ["jpeg", "png", "webp"])
def test_exif_orientation(orientation, format):
    stored = Image.new("RGB", (32, 16), "white")
    ImageDraw.Draw(stored).rectangle((0, 0, 15, 7), "red")
    ImageDraw.Draw(stored).rectangle((16, 0, 31, 7), "blue")
    exif = Image.Exif()
    exif[0x0112] = orientation
    lossless = {"jpeg": {"quality": 100, "subsampling": 0}, "png": {}, "webp": {"lossless": True}}[format]
    shown = np.asarray(through(stored, format, exif=exif, **lossless)).astype(int)
    expected = UPRIGHT[orientation](np.asarray(stored).astype(int))
    assert shown.shape == expected.shape
    assert np.abs(shown - expected).max() <= 3


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize(
    "exif", [b"Exif\0\0rubbish", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff"]
)
def test_damaged_exif_does_not_matter(exif):
    data = encoded("blue", (8, 8), "jpeg", exif=exif)
    assert read_picture(data, "a.jpg").size == (8, 8)


def test_formats_of_the_listed_endings(tmp_path):
    written = 0
    for ending in PICTURES:
        Image.init()
        format = Image.EXTENSION.get(ending)
        if format is None or format not in Image.SAVE:
            continue  # a Pillow without that library
        path = tmp_path / f"picture{ending}"
        Image.new("RGB", (16, 16)).save(path)
        assert read_picture(path).size == (16, 16)
        written += 1
    assert written >= 11


def test_path_text_and_memoryview_are_read(tmp_path):
    data = encoded("blue")
    (tmp_path / "a.png").write_bytes(data)
    for source in (tmp_path / "a.png", str(tmp_path / "a.png"), data, memoryview(data)):
        assert colour_at(read_picture(source)) == (0, 0, 255)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty (0 bytes)"),
        (b"<html>404</html>", "it is no picture; it begins with b'<html>404</html>'"),
        (b"\x89PNG\r\n\x1a\n", "cannot be read"),
        (b"\xff\xd8\xff\xe0 and no more", "cannot be read"),
        (b"RIFF\x10\0\0\0WEBPVP8L", "cannot be read"),
        (b"GIF89a", "cannot be read"),
    ],
)
def test_bad_files_are_named(tmp_path, content, reason):
    path = tmp_path / "broken.jpg"
    path.write_bytes(content)
    with refused("broken.jpg", reason):
        read_picture(path)
    with refused("picture 'sample 7'", reason):
        read_picture(content, "sample 7")


def test_no_file_and_a_folder_are_named(tmp_path):
    with refused("picture 'a/b.jpg'", "there is no such file"):
        read_picture(tmp_path / "absent.jpg", "a/b.jpg")
    with refused("picture 'folder'", "cannot be read"):
        read_picture(tmp_path, "folder")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.png")
    with refused("picture 'a.png'", "not a regular file"):
        read_picture(tmp_path / "a.png", "a.png")
    (tmp_path / "link.png").symlink_to(tmp_path / "a.png")
    with refused("not a regular file"):
        read_picture(tmp_path / "link.png")


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize("kept", [0.4, 0.9])
@pytest.mark.parametrize(
    ("format", "options"),
    [("jpeg", {}), ("jpeg", {"progressive": True}), ("png", {}), ("webp", {"lossless": True}), ("bmp", {}),
     ("gif", {}), ("tiff", {}), ("tiff", {"compression": "tiff_lzw"}), ("ppm", {})],
)  # fmt: skip
def test_files_cut_short_are_named(format, options, kept):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, format, **options)
    whole = file.getvalue()
    assert read_picture(whole, "whole").size == (64, 64)
    with refused("picture 'cut'", "cannot be read"):
        read_picture(whole[: int(len(whole) * kept)], "cut")


def test_huge_picture_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with refused("picture 'bomb.png'", "cannot be read"):
        read_picture(encoded(size=(64, 64)), "bomb.png")
