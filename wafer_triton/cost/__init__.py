"""The cost of a schedule on a wafer: cycles that the PLMR model predicts, from constants that are fitted on silicon.

`phases` reads a schedule's demands. `price` prices them with `constants`. `layers` prices the layers of a decoder,
and `inference` its phases and a request. `estimate` prices whole products and models, as `results`; `search` finds
the best meshes. `capacity` says how long a cache may grow, and `bands` how sure an estimate is. `calibrate` fits the
constants and compares with measurements. Nothing imports torch. No number is an emulation's time.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["estimate"])
