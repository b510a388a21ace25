"""Captions of generated scenes: one sentence each, in words that vary with the scene."""

from __future__ import annotations

from counterpoint.data.shapes_scenes import (
    BACKGROUNDS,
    COLOURS,
    OBJECTS,
    SIZES,
    TEXTURES,
    Scenes,
    uniform,
)

# No phrase holds a word of another class of the same column ("the night sky", "in the woods"),
# nor the name of an object or a colour: a caption then says one thing only.
OBJECT_WORDS: dict[str, tuple[str, ...]] = {
    "circle": ("circle", "disc", "round disc"),
    "square": ("square", "square box"),
    "triangle": ("triangle", "three-sided triangle", "three-cornered shape"),
    "star": ("star", "five-pointed star"),
    "cross": ("cross", "plus sign"),
    "ring": ("ring", "hoop"),
    "heart": ("heart", "valentine heart"),
    "crescent": ("crescent", "crescent moon"),
    "hexagon": ("hexagon", "six-sided shape"),
    "arrow": ("arrow", "pointing arrow"),
    "drop": ("drop", "teardrop"),
    "bolt": ("lightning bolt", "thunderbolt"),
}
COLOUR_WORDS: dict[str, tuple[str, ...]] = {
    "red": ("red", "crimson", "scarlet"),
    "orange": ("orange", "tangerine"),
    "yellow": ("yellow", "lemon-coloured"),
    "green": ("green", "emerald"),
    "turquoise": ("turquoise", "cyan"),
    "blue": ("blue", "cobalt"),
    "purple": ("purple", "violet"),
    "pink": ("pink", "rose-coloured"),
    "white": ("white", "ivory"),
    "black": ("black", "jet-black"),
}
SIZE_WORDS: dict[str, tuple[str, ...]] = {
    "small": ("small", "little"),
    "medium": ("medium", "medium-sized", "middle-sized"),
    "large": ("large", "big", "huge"),
}
TEXTURE_WORDS: dict[str, tuple[str, ...]] = {
    "plain": ("plain", "unpatterned"),
    "striped": ("striped", "banded"),
    "dotted": ("dotted", "spotted"),
    "checked": ("checked", "chequered"),
}
TEXTURE_PHRASES: dict[str, tuple[str, ...]] = {
    "plain": ("", "without a pattern"),
    "striped": ("with stripes", "with bands"),
    "dotted": ("with dots", "with spots"),
    "checked": ("with checks", "with a chequered pattern"),
}
BACKGROUND_PHRASES: dict[str, tuple[str, ...]] = {
    "sky": ("in the sky", "among clouds", "in a cloudy sky"),
    "grass": ("on grass", "on a lawn", "in a meadow"),
    "sand": ("on sand", "lying on a beach", "in the desert"),
    "water": ("on water", "on the sea", "floating on a lake"),
    "brick": ("on a brick wall", "in front of bricks", "against brickwork"),
    "night": ("at night", "in the dark of the night", "at midnight"),
    "wood": ("on wood", "on wooden planks", "on a wooden table"),
    "snow": ("in the snow", "in a snowfall", "on a snowy day"),
    "stone": ("on cobblestones", "on stone", "on a stone pavement"),
    "tiles": ("on tiles", "on a tiled wall", "on bathroom tiles"),
    "lava": ("over lava", "above hot lava", "on molten lava"),
    "forest": ("in a forest", "among trees", "between tree trunks"),
}
# [a] becomes the article that the next word asks for.
TEMPLATES = (
    "[a] {size} {colour} {adjective} {object} {background}",
    "[a] {size} {colour} {object} {phrase} {background}",
    "{background}, [a] {size} {adjective} {object} in {colour}",
    "a picture of [a] {colour} {object} {phrase} {background}, {size} in size",
    "the {object} {background} is {size}, {colour} and {adjective}",
    "there is [a] {colour} {object} {background}; it is {size} and {adjective}",
    "one {size} {object} {background}, {colour} {phrase}",
    "[a] {adjective} {object}, {size} and {colour}, {background}",
)


def captions(scenes: Scenes) -> list[str]:
    """One sentence per scene that names its object, colour, size and background, and most often its texture.

    A plain texture may go unsaid; every other texture is named.
    """
    draws = uniform(scenes.ids, "caption", 7).tolist()
    columns = (scenes.object, scenes.colour, scenes.size, scenes.texture, scenes.background)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [_sentence(row, draw) for row, draw in zip(rows, draws, strict=True)]


def _sentence(row: tuple[int, ...], draw: list[float]) -> str:
    shape, colour, size, texture, background = row
    texture_name = TEXTURES[texture]
    template = _pick(TEMPLATES, draw[0])
    adjective = _pick(TEXTURE_WORDS[texture_name], draw[4])
    if texture_name == "plain" and template is TEMPLATES[0]:
        adjective = ""
    text = template.format(
        object=_pick(OBJECT_WORDS[OBJECTS[shape]], draw[1]),
        colour=_pick(COLOUR_WORDS[list(COLOURS)[colour]], draw[2]),
        size=_pick(SIZE_WORDS[list(SIZES)[size]], draw[3]),
        adjective=adjective,
        phrase=_pick(TEXTURE_PHRASES[texture_name], draw[5]),
        background=_pick(BACKGROUND_PHRASES[BACKGROUNDS[background]], draw[6]),
    )
    text = " ".join(text.replace(" ,", ",").split())
    before, found, after = text.partition("[a] ")
    return f"{before}{'an' if after[0] in 'aeiou' else 'a'} {after}" if found else text


def _pick(words: tuple[str, ...], draw: float) -> str:
    return words[int(draw * len(words))]
