"""Run by test_resume.py: `resume_worker.py STORE FOLDER RECIPE ADDRESS` trains on a disk so slow that a kill can hit a
save. The engine is the test's own, at ADDRESS.
"""

import os
import sys
import time
from multiprocessing.connection import Client
from pathlib import Path

from assay.pipelines.process_engine import PipeEngine
from assay.pipelines.store import Store
from assay.pipelines.verify import Verifier
from assay.rl.checkpoint import load_model
from assay.rl.recipe import TrainRecipe
from assay.rl.trainer import Trainer

sys.path.insert(0, str(Path(__file__).parent))
from test_resume import PROBLEMS

store, folder, text, address = sys.argv[1:]
real = os.fsync
os.fsync = lambda file: (time.sleep(0.1), real(file))[1]  # type: ignore[assignment,misc]
made = TrainRecipe.model_validate_json(text)
engine = PipeEngine(made.model, 512, Client(address))
with Verifier(workers=1) as verifier:
    Trainer(made, load_model(made.model), engine, verifier, PROBLEMS, Store.open(Path(store)), Path(folder)).train()
