"""Drawing in NumPy: colours, text, marks and PNG files. It does not depend on environments."""

from shoal.draw.font import HEIGHT, PITCH, mask_of
from shoal.draw.pixels import Pixels, rgb, stamp
from shoal.draw.png import to_png, write_png

__all__ = ["HEIGHT", "PITCH", "Pixels", "mask_of", "rgb", "stamp", "to_png", "write_png"]
