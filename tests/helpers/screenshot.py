"""Photograph a page for docs/reference.md with Debian's Chromium: `make screenshot`."""

import tempfile
from pathlib import Path

from PIL import Image

import browser as chromium
from wafer_triton.cli.main import main


def screenshot(path):
    """Photograph MeshGEMM beside Cannon while tiles move."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        line = f"draw gemm --m 128 --k 128 --n 128 --mesh 8 --beside cannon --out {folder / 'page.html'}"
        assert main(line.split()) == 0
        one = chromium.Browser(folder)
        try:
            one.ask("Emulation.setDeviceMetricsOverride", width=1300, height=1000, deviceScaleFactor=1, mobile=False)
            one.open(folder / "page.html")
            one.choose("#slider", "7")
            x, y = one.value("waferTriton.then((page) => page.maps[0].middle(27))")
            one.click(x, y)
            one.screenshot(folder / "page.png", "#chosen")
        finally:
            one.close()
        Image.open(folder / "page.png").convert("RGB").quantize(160).save(path, optimize=True)


if __name__ == "__main__":
    screenshot(Path(__file__).resolve().parents[2] / "docs" / "pictures" / "page.png")
