"""What a schedule costs on a wafer: cycles that the PLMR model predicts, from constants that are fitted on silicon.

`phases` reads a schedule's demands. `price` prices them with `constants`. `layers` prices the layers of a decoder, and
`rivals` what nobody has a schedule of. `estimate` prices whole products and models, as `results`; `search` looks for
the best. `residence` says whether a model fits a device, `capacity` how long its cache may grow, and `bands` what an
estimate rests on. `calibrate` fits the constants and compares with measurements. Nothing imports torch. No number is an
emulation's time.
"""
