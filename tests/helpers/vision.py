"""Colours as colour-blind readers see them, and their distances: Machado et al. (2009), full severity, and CIELAB."""

import numpy as np

# of linear red, green and blue (Machado, Oliveira and Fernandes, IEEE TVCG 15, 2009, table 1)
BLIND = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
XYZ = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750), (0.0193339, 0.1191920, 0.9503041))  # sRGB


def linear(colours):
    """Return linear red, green and blue [n, 3] of colours such as "#0072b2"."""
    values = np.array([[int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)] for colour in colours])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """Return CIELAB [n, 3] of linear colours, under D65."""
    share = (rgb @ np.array(XYZ).T) / np.array(XYZ).sum(1)
    f = np.where(share > (6 / 29) ** 3, np.cbrt(share), share / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], 1)


def seen(colours, kind=None):
    """Return the CIELAB of colours for a `kind` of colour blindness (None: none)."""
    rgb = linear(colours)
    return lab(np.clip(rgb @ np.array(BLIND[kind]).T, 0, 1) if kind else rgb)


def distances(colours, kind=None):
    """Return the distance of each pair of colours, by the pair."""
    points = seen(colours, kind)
    return {
        (colours[a], colours[b]): float(np.linalg.norm(points[a] - points[b]))
        for a in range(len(colours))
        for b in range(a)
    }
