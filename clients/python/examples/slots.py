"""A GPU of its own for each process, of those that an administrator has declared:

signalbox declare gpus --capacity 4 --slots
SIGNALBOX_URL=http://127.0.0.1:11217 python3 slots.py
"""

import os
from datetime import timedelta

import signalbox

with signalbox.Client().acquire("gpus", wait=timedelta(minutes=1)) as permit:
    ((gpu,),) = permit.slots  # One claim, of one slot.
    os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)
    print(f"on GPU {gpu}")
