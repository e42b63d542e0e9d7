"""What a schedule costs on a wafer: cycles that the PLMR model predicts, from constants that are fitted on silicon.

`phases` reads a schedule's demands, `price` prices them with `constants`; `estimate` builds the schedules of products
and models and prices them, `search` looks for the best; `calibrate` holds the model against measurements. No torch
anywhere. Emulation time is never here.
"""
