"""Drawing in NumPy: colours, text, marks, PNG and GIF files. It does not depend on environments."""

from shoal.draw.font import HEIGHT, PITCH, mask_of
from shoal.draw.gif import to_gif, write_gif
from shoal.draw.pixels import Pixels, rgb, stamp
from shoal.draw.png import to_png, write_png

__all__ = [
    "HEIGHT",
    "PITCH",
    "Pixels",
    "mask_of",
    "rgb",
    "stamp",
    "to_gif",
    "to_png",
    "write_gif",
    "write_png",
]
