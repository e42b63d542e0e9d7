"""What a schedule costs on a wafer: cycles that the PLMR model predicts, from constants that are fitted on silicon.

`phases` reads a schedule's demands, `pricing` prices them with `constants`; `steps`, `layers` and `residency` put
decoders together; `calibration`, `fit` and `validation` hold the model against measurements; `planning` searches with
it. No torch anywhere. Emulation time is never here.
"""

from wafer_triton.cost.price import Cost, price

__all__ = ["Cost", "price"]
