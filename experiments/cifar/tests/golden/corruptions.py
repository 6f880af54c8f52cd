"""Reference values for src/data/corruption: the package imagecorruptions with CIFAR-10-C's
parameters, which its source has for larger images.

Run (writes corruptions.json beside this file):

    python -m venv venv
    venv/bin/pip install numpy==2.4.6 scipy==1.17.1 scikit-image==0.26.0 pillow==13.0.0 \
        opencv-python-headless==5.0.0.93
    venv/bin/pip install --no-deps imagecorruptions==1.1.2
    venv/bin/python experiments/cifar/tests/golden/corruptions.py

The package is older than these libraries: a few names in its source are replaced.
"""

import importlib.util
import json
import re
import types
from pathlib import Path

import numpy as np
from PIL import Image

# Hendrycks and Dietterich, make_cifar_c.py.
PARAMETERS = {
    "gaussian_blur": "[.4, .6, 0.7, .8, 1]",
    "brightness": "[.05, .1, .15, .2, .3]",
    "contrast": "[.75, .5, .4, .3, 0.15]",
    "saturate": "[(0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)]",
    "pixelate": "[0.95, 0.9, 0.85, 0.75, 0.65]",
    "jpeg_compression": "[80, 65, 58, 50, 40]",
}

folder = Path(importlib.util.find_spec("imagecorruptions").submodule_search_locations[0])
source = (folder / "corruptions.py").read_text()
source = source.replace("multichannel=True", "channel_axis=-1")
source = source.replace("from scipy.ndimage.interpolation", "from scipy.ndimage")
source = source.replace("from pkg_resources import resource_filename", "")
# Our encoder keeps the colours of all pixels.
source = source.replace("'JPEG', quality=c)", "'JPEG', quality=c, subsampling=0)")
for name, values in PARAMETERS.items():
    pattern = rf"(def {name}\(x, severity=1\):\n    c = )\[.*?\](\[severity - 1\])"
    source, count = re.subn(pattern, rf"\g<1>{values}\g<2>", source, flags=re.DOTALL)
    assert count == 1, name
package = types.ModuleType("corruptions")
exec(compile(source, "corruptions.py", "exec"), package.__dict__)

# A scene with smooth shades, edges, saturated and grey colours.
rng = np.random.default_rng(20261118)
y, x = np.mgrid[0:32, 0:32] / 31.0
image = np.stack([x, y, 0.5 + 0.5 * np.sin(9 * x * y)], axis=2)
image[4:14, 18:28] = [0.9, 0.2, 0.1]
image[18:28, 4:14] = [0.5, 0.5, 0.5]
image = np.clip(image + 0.05 * rng.normal(size=image.shape), 0, 1)
image = np.uint8(np.round(image * 255))
picture = Image.fromarray(image)


def planes(array):
    return np.uint8(np.asarray(array)).transpose(2, 0, 1).ravel().tolist()


names = {"jpeg_compression": "jpeg"}
golden = {
    "image": planes(image),
    "corrupted": {
        names.get(name, name).replace("_", "-"): [
            planes(getattr(package, name)(picture, severity)) for severity in range(1, 6)
        ]
        for name in PARAMETERS
    },
}
path = Path(__file__).with_name("corruptions.json")
path.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
print(f"{path.name}: {path.stat().st_size} bytes")
