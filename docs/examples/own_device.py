"""An own device: a WSE-2 with more SRAM and slower links, and the predicted time of a decode token on it."""

from wafer_triton import estimate
from wafer_triton.device import device

slower = device("wse2").changed(sram_kib=64, hop_cycles=2, link_bytes_per_cycle=2, name="slower")

if __name__ == "__main__":
    for chip in (device("wse2"), slower):
        token = estimate.decode(device=chip, model="llama3-8b", mesh=360, context=4096)
        print(f"{chip.name}: {token.tokens_per_second:,.0f} tokens/s, predicted on the wafer; {token.constants}")
