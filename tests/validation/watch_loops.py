"""Steps and input waits that `watch` records, against the clocks of eight training scripts.

``python -m tests.validation.watch_loops`` prints a row for each script. ``--site FOLDER`` is an
import path with `accelerate` and `lightning` for the scripts that need them; a script whose
package is missing is named as such.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from math import fsum
from pathlib import Path

from sysbench.core.record.job import step_phases
from sysbench.core.watch.hook.step_recorder import STEP_VARIABLE
from sysbench.core.watch.job_steps import MarkFile, StepFold
from sysbench.core.watch.supervise_job import FOLDER_VARIABLE, HOOK

START = """
import json, os, time, torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)
torch.set_num_threads(1)
class Rows(Dataset):
    def __len__(self):
        return 96
    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((32,), index % 50)
class Waits:
    # The time that the loop waits for a loader.
    def __init__(self, loader):
        self.loader, self.seconds = loader, 0.0
    def __iter__(self):
        iterator = iter(self.loader)
        while True:
            began = time.monotonic()
            batch = next(iterator, None)
            self.seconds += time.monotonic() - began
            if batch is None:
                return
            yield batch
    def __len__(self):
        return len(self.loader)
    def __getattr__(self, name):
        return getattr(self.loader, name)
def Net():
    return torch.nn.Sequential(
        torch.nn.Embedding(50, 64), torch.nn.Linear(64, 256), torch.nn.Linear(256, 50))
def loss_of(model, batch):
    return F.cross_entropy(model(batch).flatten(0, 1), batch.flatten())
def report(steps, seconds):
    if int(os.environ.get("RANK", "0")) == 0:
        print("OWN", json.dumps([steps, seconds]))
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = Waits(DataLoader(Rows(), batch_size=4))
steps = 0
"""
SCRIPTS = {
    "plain loop": """
for batch in loader:
    loss_of(model, batch).backward(); optimizer.step(); optimizer.zero_grad(); steps += 1
report(steps, loader.seconds)
""",
    "accumulation": """
for number, batch in enumerate(loader):
    (loss_of(model, batch) / 4).backward()
    if number % 4 == 3:
        optimizer.step(); optimizer.zero_grad(); steps += 1
report(steps, loader.seconds)
""",
    "two optimizers": """
other = Net()
second = torch.optim.SGD(other.parameters(), lr=0.1)
for batch in loader:
    for net, own in ((model, optimizer), (other, second)):
        own.zero_grad(); loss_of(net, batch).backward(); own.step()
    steps += 1
report(steps, loader.seconds)
""",
    "GradScaler": """
scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
for batch in loader:
    loss = loss_of(model, batch) * (float("inf") if steps == 5 else 1)
    scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update(); optimizer.zero_grad()
    steps += 1
report(steps, loader.seconds)
""",
    "Hugging Face Trainer": """
import tempfile
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
class Texts(Rows):
    def __getitem__(self, index):
        row = super().__getitem__(index)
        return {"input_ids": row, "labels": row}
net = LlamaForCausalLM(LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=64,
    num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2))
arguments = TrainingArguments(tempfile.mkdtemp(), per_device_train_batch_size=4, report_to=[],
    num_train_epochs=1, save_strategy="no", gradient_accumulation_steps=2, use_cpu=True,
    disable_tqdm=True, dataloader_pin_memory=False)
class Waiting(Trainer):
    def get_train_dataloader(self):
        self.waits = Waits(super().get_train_dataloader())
        return self.waits
trainer = Waiting(net, arguments, train_dataset=Texts())
trainer.train()
report(trainer.state.global_step, trainer.waits.seconds)
""",
    "Lightning": """
import lightning
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__(); self.net = Net()
    def training_step(self, batch):
        return loss_of(self.net, batch)
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)
trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", logger=False, devices=1,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Module(), loader)
report(trainer.global_step, loader.seconds)
""",
    "torchrun, two ranks": """
import torch.distributed as dist
dist.init_process_group("gloo")
net = torch.nn.parallel.DistributedDataParallel(model)
for batch in loader:
    loss_of(net, batch).backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step(); optimizer.zero_grad(); steps += 1
dist.destroy_process_group()
report(steps, loader.seconds)
""",
    "inference by --step-on": """
import serving
for batch in loader:
    serving.answer(batch); steps += 1
report(steps, loader.seconds)
""",
}
SERVING = """
import torch
model = torch.nn.Sequential(torch.nn.Embedding(50, 64), torch.nn.Linear(64, 50))
def answer(batch):
    with torch.no_grad():
        return [model(batch) for _ in range(3)]
"""
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def watched(name: str, folder: Path, site: str) -> str:
    """Run a script; return its row of the table."""
    marks = folder / "marks"
    marks.mkdir(parents=True)
    (folder / "serving.py").write_text(SERVING)
    script = folder / "train.py"
    script.write_text(START + SCRIPTS[name])
    path = os.pathsep.join(filter(None, [str(HOOK), site]))
    environ = {**os.environ, "PYTHONPATH": path, FOLDER_VARIABLE: str(marks)}
    if "--step-on" in name:
        environ[STEP_VARIABLE] = "serving:answer"
    launch = [*TORCHRUN, "--local-addr", "127.0.0.1"] if "torchrun" in name else []
    done = subprocess.run(
        [sys.executable, *launch, str(script)], env=environ, capture_output=True, text=True
    )
    own = [line for line in done.stdout.splitlines() if line.startswith("OWN")]
    if not own:
        return f"{name}: {(done.stderr.strip().splitlines() or ['no output'])[-1]}"
    steps, seconds = json.loads(own[0][4:])
    rows = []
    for file in (MarkFile(path, folder) for path in sorted(marks.iterdir())):
        fold = StepFold(0, 0)
        for mark in file.read():
            fold.take(mark)
        fold.finish()
        if not fold.steps or (file.facts is not None and file.facts.rank):
            continue
        waited = fsum(row.input_ms for row in fold.loaders) / 1e3
        walls = [step.wall_ms for step in fold.steps]
        worst = max(abs(fsum(step_phases(step).values()) / step.wall_ms - 1) for step in fold.steps)
        waits = [step.communication_ms for step in fold.steps if step.communication_ms is not None]
        rows.append(
            f"{name}: {len(fold.steps)} of {steps} steps; input {1e3 * waited:.1f} ms, own clock "
            f"{1e3 * seconds:.1f} ms ({100 * (waited / seconds - 1):+.2f} %); phases of a step "
            f"off by at most {100 * worst:.4f} %; {fold.loaders[0].place}, "
            f"num_workers={fold.loaders[0].workers}"
            + (f"; communication {fsum(waits):.1f} of {fsum(walls):.1f} ms" if waits else "")
        )
    return "\n".join(rows) or f"{name}: no step was recorded"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--site", default="")
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.names or SCRIPTS:
            print(watched(name, Path(folder) / name.replace(" ", "-"), arguments.site), flush=True)


if __name__ == "__main__":
    main()
