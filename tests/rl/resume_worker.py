"""Run by test_resume.py: `resume_worker.py STORE FOLDER RECIPE` trains on a disk so slow that a kill can hit a save."""

import os
import sys
import time
from pathlib import Path

from assay.flows.models import EnginePool
from assay.pipelines.store import Store
from assay.pipelines.verify import Verifier
from assay.rl.checkpoint import load_model
from assay.rl.recipe import TrainRecipe
from assay.rl.trainer import Trainer

sys.path.insert(0, str(Path(__file__).parent))
from test_resume import PROBLEMS

store, folder, text = sys.argv[1:]
real = os.fsync
os.fsync = lambda file: (time.sleep(0.1), real(file))[1]  # type: ignore[assignment,misc]
made = TrainRecipe.model_validate_json(text)
with EnginePool(max_model_len=512, dtype="float32") as pool, Verifier(workers=1) as verifier:
    engine = pool.get(made.model)
    Trainer(made, load_model(made.model), engine, verifier, PROBLEMS, Store.open(Path(store)), Path(folder)).train()
